module github.com/lokt-dev/lokt/tools/campaign

go 1.26.0
