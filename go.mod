module github.com/lokt-dev/lokt

go 1.26.0

require (
	github.com/fsnotify/fsnotify v1.10.1
	golang.org/x/sys v0.49.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
