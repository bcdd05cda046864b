package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/renewed"
	"github.com/lokt-dev/lokt/internal/vfs"
	"github.com/lokt-dev/lokt/store/sqlstore"
)

// backupPath answers with a copy of the store, which is of backupType.
const (
	backupPath = "/v1/backup"
	backupType = "application/vnd.sqlite3"
)

// backupSuffix ends the names of copies on their way to a client, beside the store.
const backupSuffix = ".sending"

// backup answers with a copy of the store as it is at one moment. The copy is made beside the store before it is sent,
// so that a slow client delays nobody.
func (d *daemon) backup(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		problem(w, http.StatusMethodNotAllowed, "method_not_allowed", "")
	case !d.allowed(w, r, httpapi.ScopeAdmin):
	case d.stores.file() == nil:
		problem(w, http.StatusNotFound, "no_backup", "this store is backed up by its own means")
	case !d.copying.TryLock():
		w.Header().Set("Retry-After", "5")
		problem(w, http.StatusServiceUnavailable, "unavailable", "another backup is being made")
	default:
		defer d.copying.Unlock()
		if err := d.sendBackup(w, r); err != nil {
			d.log.Error("backup failed", "err", err)
			if w.Header().Get("Content-Length") != "" {
				panic(http.ErrAbortHandler) // or the client would take part of it for all
			}
			problem(w, http.StatusServiceUnavailable, "unavailable", err.Error())
		}
	}
}

func (d *daemon) sendBackup(w http.ResponseWriter, r *http.Request) error {
	db := d.stores.file()
	path := db.Path() + backupSuffix
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a daemon that was killed
		return err
	}
	defer os.Remove(path) //nolint:errcheck // the next one tries again
	if err := db.Backup(r.Context(), path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", backupType)
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	control := http.NewResponseController(w)
	for sent := int64(0); sent < info.Size(); {
		_ = control.SetWriteDeadline(time.Now().Add(d.c.BodyTimeout)) // not every connection has one
		n, err := io.CopyN(w, f, 1<<20)
		if sent += n; err != nil && sent < info.Size() {
			return err
		}
	}
	d.log.Info("backup sent", "bytes", info.Size())
	return nil
}

// runBackup has the daemon make a copy of its store, or makes it itself if none runs.
func runBackup(ctx context.Context, s Streams, c *Config, args []string) error {
	path := args[0]
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s is there already", path)
	}
	token, err := ownToken()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM) // which leaves nothing behind
	defer stop()
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part") // before anybody is asked for what cannot be kept
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	part := f.Name()
	n, err := c.fetch(ctx, token, f)
	if err = errors.Join(err, f.Close()); err == nil {
		err = atomicfile.Publish(vfs.OS(), part, path)
	}
	if err != nil {
		_ = os.Remove(part) // it could not be kept anyway
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return c.backupAlone(ctx, s, path)
	case err != nil:
		return fmt.Errorf("backup: %w", err)
	}
	fmt.Fprintf(s.Out, "%s: %d bytes, from the daemon at %s\n", path, n, c.Listen)
	return nil
}

// fetch writes the daemon's copy to a file, to the disk.
func (c *Config) fetch(ctx context.Context, token string, to *os.File) (int64, error) {
	answer, err := c.ask(ctx, backupPath, token, "none is made", backupType)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	n, err := io.Copy(to, answer.Body)
	if err == nil && n != answer.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	return n, errors.Join(err, to.Sync())
}

// backupAlone makes a copy when no daemon has the store.
func (c *Config) backupAlone(ctx context.Context, s Streams, path string) error {
	store := c.Store
	if _, _, ok := sqlstore.File(store); !ok {
		store = c.JobsStore
	}
	file, _, ok := sqlstore.File(store)
	if !ok {
		return fmt.Errorf("%s is backed up by its own means", redact(c.Store))
	}
	if !exists(file) {
		return fmt.Errorf("no daemon at %s, and no store: there is no %s", c.Listen, file)
	}
	db, err := sqlstore.Open(ctx, store, sqlstore.Options{Describe: "making a backup"})
	if errors.Is(err, lokt.ErrUnavailable) {
		return fmt.Errorf("%w; the daemon that has it is asked with --listen, and none answers at %s", err, c.Listen)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(db.Backup(ctx, path), db.Close()); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "%s: from %s; no daemon runs at %s\n", path, db.Path(), c.Listen)
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ownToken returns the token that the command's user has, in the variables that lokt takes it from: LOKT_SERVER_TOKEN,
// or LOKT_TOKEN_FILE.
func ownToken() (string, error) {
	if t := os.Getenv("LOKT_SERVER_TOKEN"); t != "" {
		return t, nil
	}
	file := os.Getenv("LOKT_TOKEN_FILE")
	if file == "" {
		return "", nil
	}
	token, err := renewed.FirstLine(file)
	if err != nil {
		return "", fmt.Errorf("LOKT_TOKEN_FILE: %w", err)
	}
	return token, nil
}
