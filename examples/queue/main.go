// Command queue works through the files of a directory, one at a time, each once, however many processes of it run:
//
//	queue DIR
//
// It moves each file of DIR/in to DIR/out and writes a line about it to DIR/done. The locks are files below DIR/locks. If a
// process is killed, another goes on at once: the lock of a dead process is free.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/filestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: queue DIR")
		os.Exit(64)
	}
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "queue:", err)
		os.Exit(1)
	}
}

// run works until nothing is left.
func run(ctx context.Context, dir string) (err error) {
	store, err := filestore.Open(filepath.Join(dir, "locks"), filestore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	owner, err := store.Runner()
	if err != nil {
		return err
	}
	locker, err := lokt.NewLocker(lokt.NewManager(store), owner, lokt.LockerOptions{
		Defaults: lokt.Options{Process: &owner.Process},
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "out"), 0o700); err != nil {
		return err
	}
	for more := true; more; {
		err := locker.Do(ctx, "queue", lokt.Options{Wait: -1}, func(ctx context.Context, _ uint64) error {
			var err error
			more, err = next(ctx, dir)
			return err
		})
		if err != nil && !errors.Is(err, lokt.ErrLost) { // after a loss, the file is somebody's who holds the lock
			return err
		}
	}
	return nil
}

// next works on the first file, and reports whether there was one.
func next(ctx context.Context, dir string) (bool, error) {
	files, err := os.ReadDir(filepath.Join(dir, "in"))
	if err != nil || len(files) == 0 {
		return false, err
	}
	name := files[0].Name()
	done, err := os.OpenFile(filepath.Join(dir, "done"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return true, err
	}
	defer done.Close()
	if err := ctx.Err(); err != nil { // look before doing what cannot be undone
		return true, err
	}
	if _, err := fmt.Fprintln(done, name, os.Getpid()); err != nil {
		return true, err
	}
	return true, os.Rename(filepath.Join(dir, "in", name), filepath.Join(dir, "out", name))
}
