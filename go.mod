module github.com/lokt-dev/lokt

go 1.26.0

require (
	github.com/fsnotify/fsnotify v1.10.1
	golang.org/x/sys v0.49.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/gofrs/flock v0.13.1 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
