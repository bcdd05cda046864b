// Package easy is the front door of lokt's library: one call gives a Locker, for the files of this host or for a server.
//
//	locks, err := easy.Open(".lokt") // or "https://locks.example:7117"
//	if err != nil {
//		return err
//	}
//	defer locks.Close()
//	err = locks.Do(ctx, "import", lokt.Options{Wait: time.Minute}, func(ctx context.Context, token uint64) error {
//		return importEverything(ctx) // and stop when ctx ends
//	})
//
// The owner is this process, and whatever its goroutines acquire excludes each other. Who needs another owner, another
// store, or metrics, puts a Locker together with lokt.NewLocker.
package easy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/renewed"
	"github.com/lokt-dev/lokt/store/filestore"
)

// Locker is a lokt.Locker, and what it stands on.
type Locker struct {
	*lokt.Locker
	under io.Closer
}

// Close ends the Locker, which takes some seconds if a server does not answer. What is being acquired is given up, and the locks that
// are still held are released.
func (l *Locker) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(l.Locker.Close(ctx), l.under.Close())
}

const closeTimeout = 5 * time.Second

// User and System, as places, are one directory of lock files for all that a user runs, and one for root on this host.
const (
	User   = "user"
	System = "system"
)

// Root returns the directory that is meant by User or System, and that of any other name, which it is itself. User goes by
// the home directory alone, because cron and a shell need to agree, and cron knows no XDG_STATE_HOME. The error wraps
// lokt.ErrInvalid.
func Root(name string) (string, error) {
	switch name {
	case System:
		return "/var/lib/lokt", nil
	case User:
		home, err := os.UserHomeDir()
		if err != nil || !filepath.IsAbs(home) {
			return "", fmt.Errorf("%w: HOME does not say where this user's locks are", lokt.ErrInvalid)
		}
		return filepath.Join(home, ".local", "state", "lokt"), nil
	}
	return name, nil
}

// Open returns a Locker for the servers at one or several URLs with commas between, or else for the lock files in a
// directory, which is made when it is needed, or User or System. If where is empty, LOKT_SERVER, which is never a directory, or
// LOKT_ROOT says it.
//
// Files free a lock the moment that this process dies. A server is reached as ClientOptions says, and frees a lock when its
// TTL is over. Nothing is connected to. The error wraps lokt.ErrInvalid if no place is named or a URL makes no sense.
func Open(where string) (*Locker, error) {
	server := strings.Contains(where, "://") || where == "" && os.Getenv("LOKT_SERVER") != ""
	where = cmp.Or(where, os.Getenv("LOKT_SERVER"), os.Getenv("LOKT_ROOT"))
	if _, port, err := net.SplitHostPort(where); err == nil && port != "" && !strings.ContainsAny(where, `/\`) {
		return nil, fmt.Errorf("%w: %s is neither a directory nor a URL: for a server, write http://%[2]s or https://%[2]s", lokt.ErrInvalid, where)
	}
	o := lokt.LockerOptions{Defaults: lokt.Options{Strict: true}}
	if server {
		how, err := ClientOptions(os.Getenv)
		if err != nil {
			return nil, err
		}
		client, err := httpapi.New(where, how)
		if err != nil {
			return nil, err
		}
		return over(client, client, lokt.Owner{Process: lokt.Process{PID: os.Getpid()}}, o)
	}
	if where == "" {
		return nil, fmt.Errorf("%w: name a directory or a server, here or with LOKT_ROOT or LOKT_SERVER", lokt.ErrInvalid)
	}
	root, err := Root(where)
	if err != nil {
		return nil, err
	}
	store, err := filestore.Open(root, filestore.Options{})
	if err != nil {
		return nil, err
	}
	owner, err := store.Runner()
	if err != nil {
		_ = store.Close() // the first error says more
		return nil, err
	}
	o.Defaults.Process = &owner.Process
	return over(lokt.NewManager(store), store, owner, o)
}

func over(service lokt.Service, under io.Closer, owner lokt.Owner, o lokt.LockerOptions) (*Locker, error) {
	owner.Host, _ = os.Hostname() // it may have none
	locker, err := lokt.NewLocker(service, owner, o)
	return &Locker{locker, under}, err
}

// ClientOptions returns what the environment says of how to reach a server: LOKT_SERVER_TOKEN or the first line of the file
// LOKT_TOKEN_FILE, LOKT_CA_FILE for certificates to trust instead of the system's, LOKT_CERT_FILE and LOKT_KEY_FILE for the
// client's own. A token or a certificate that is put in place of the one in its file is used from then on. Errors are about files, or
// wrap lokt.ErrInvalid.
func ClientOptions(getenv func(string) string) (o httpapi.ClientOptions, err error) {
	o.Token = getenv("LOKT_SERVER_TOKEN")
	if file := getenv("LOKT_TOKEN_FILE"); o.Token == "" && file != "" {
		if o.Token, err = renewed.FirstLine(file); err != nil {
			return o, fmt.Errorf("LOKT_TOKEN_FILE: %w", err)
		}
		var last atomic.Value
		last.Store(o.Token)
		o.TokenSource = func() (string, error) {
			if token, err := renewed.FirstLine(file); err == nil {
				last.Store(token)
			} // otherwise it may be about to be replaced
			return last.Load().(string), nil
		}
	}
	ca, cert, key := getenv("LOKT_CA_FILE"), getenv("LOKT_CERT_FILE"), getenv("LOKT_KEY_FILE")
	if (cert == "") != (key == "") {
		return o, fmt.Errorf("%w: LOKT_CERT_FILE and LOKT_KEY_FILE belong together: set both or none", lokt.ErrInvalid)
	}
	if ca == "" && cert == "" {
		return o, nil
	}
	files, err := renewed.NewTLS(ca, cert, key)
	if err != nil {
		name := "LOKT_CERT_FILE, LOKT_KEY_FILE"
		if _, e := renewed.NewTLS(ca, "", ""); e != nil {
			name, err = "LOKT_CA_FILE", e
		}
		return o, fmt.Errorf("%s: %w", name, err)
	}
	o.TLSSource = files.Config
	return o, nil
}
