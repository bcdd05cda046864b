module github.com/lokt-dev/lokt

go 1.26
