package wait

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/process"
)

// TicketVar names the ticket with which a command goes on, as lokt wait sets it; or asks for a new one.
const (
	TicketVar = "LOKT_TICKET"
	anew      = "new"
)

// ticketAge is after how long without a word from its command a ticket's file is removed.
const ticketAge = time.Hour

// kept are the variables that say where locks are, and whose: a command goes on with those of the ticket.
const kept = "HOME LOKT_ROOT LOKT_SERVER LOKT_OWNER LOKT_AGENT_ID LOKT_ON_LOST LOKT_SERVER_TOKEN LOKT_TOKEN_FILE LOKT_CA_FILE LOKT_CERT_FILE LOKT_KEY_FILE"

// hidden stands for a secret, or before a server's address without it.
const hidden = "***"

// ticket is what it takes to go on waiting in the same place. It is kept in a file of the user's, which is there while a command
// waits, and when its wait has ended without a grant.
type ticket struct {
	Dir     string            `json:"dir"`
	Args    []string          `json:"args"`    // of lokt
	Env     map[string]string `json:"env"`     // what is kept of it
	Process lokt.Process      `json:"process"` // that waits
	Wait    int               `json:"wait"`    // which it is of those that waited: see lokt.Claim.Ticket
	Places  map[string]string `json:"places"`  // leases that wait, by the names of their locks
	Held    map[string]string `json:"held"`    // and those that were granted, of a command that wants several

	file  string       // which is called as the ticket is
	turn  *flock.Flock // which keeps others from going on with it; nil before it is kept
	again bool         // what waits has gone on in a place, and nothing was said yet
	own   []string     // locks that were granted to this process
}

// newTicket returns the ticket that lokt wait was given, or a new one; nil if there is no place for it.
func newTicket(a *app.App) (*ticket, error) {
	if id := a.Getenv(TicketVar); id != "" && id != anew {
		return take(id)
	}
	file, err := path(strings.ToLower(rand.Text()[:6]))
	dir, noDir := os.Getwd()
	if err != nil || noDir != nil || len(a.Words) == 0 || shown("LOKT_SERVER", a.ServerFlag) != a.ServerFlag {
		return nil, nil
	}
	t := &ticket{Dir: dir, Args: a.Words, Wait: 1, Env: map[string]string{"PWD": dir}, Places: map[string]string{}, Held: map[string]string{}, file: file}
	for _, name := range strings.Fields(kept) {
		value := shown(name, a.Getenv(name))
		if !strings.HasPrefix(value, hidden) || len(a.ServerURLs()) > 0 { // files need no secret
			t.Env[name] = value
		}
	}
	return t, nil
}

// shown returns the value of a variable without the secret in it.
func shown(name, value string) string {
	switch {
	case name == "LOKT_SERVER_TOKEN" && value != "":
		return hidden
	case name == "LOKT_SERVER" && strings.Contains(value, "@"):
		return hidden + app.ShownURLs(strings.Split(value, ","))
	}
	return value
}

// enter makes this process's directory and variables those of the ticket. Secrets have to be there.
func (t *ticket) enter() error {
	for name, value := range t.Env {
		switch {
		case shown(name, os.Getenv(name)) == value:
		case strings.HasPrefix(value, hidden):
			return app.Hint(fmt.Errorf("the wait was begun with a secret in %s, which no ticket keeps", name), "set %s as it was, and go on again", name)
		case value == "":
			_ = os.Unsetenv(name)
		default:
			_ = os.Setenv(name, value)
		}
	}
	return os.Chdir(t.Dir)
}

// path returns where the ticket of this ID is kept.
func path(id string) (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "lokt", "tickets", id), err
}

// read returns the ticket of this ID, as it is now.
func read(id string) (*ticket, error) {
	file, err := path(id)
	if err != nil {
		return nil, err
	} else if lokt.ValidateName(id) != nil { // it would lead elsewhere
		return nil, missing(id)
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(id)
	} else if err != nil {
		return nil, err
	}
	t := &ticket{Places: map[string]string{}, Held: map[string]string{}, file: file}
	if err := lokt.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("ticket %s cannot be read: %w", id, err)
	}
	return t, nil
}

// claim makes the claim go on under the lease that the ticket has for its lock, or the ticket have the claim's.
func (t *ticket) claim(c *lokt.Claim, far *httpapi.Client) {
	if slices.Contains(t.own, c.Name) {
		delete(t.Held, c.Name) // it was given back, and a copy of that may come yet
	}
	place := t.Places[c.Name]
	t.again, c.LeaseID = place != "", cmp.Or(place, t.Held[c.Name], c.LeaseID)
	if far != nil {
		far.Know(c.LeaseID)
	}
	t.Places[c.Name] = c.LeaseID
	delete(t.Held, c.Name)
}

func missing(id string) error {
	return app.Hint(app.Worded(lokt.ErrNotFound, "there is no ticket %q", id), "its wait may have ended: see lokt status, or begin again")
}

// lock keeps others from going on with the ticket as long as this process waits with it, and reports whether none does already.
func (t *ticket) lock() (alone bool, err error) {
	turn := flock.New(t.file+".turn", flock.SetPermissions(0o600))
	if alone, err = turn.TryLock(); alone {
		t.turn = turn
	}
	return alone, err
}

// drop forgets the ticket. There may never have been one.
func (t *ticket) drop() {
	if t.turn == nil {
		return
	}
	_ = os.Remove(t.file) // before others may go on with it
	_ = t.turn.Close()
	_ = os.Remove(t.turn.Path())
	t.turn = nil
}

// save keeps the ticket, as one for which this process waits, and reports whether it could. Those that are old go.
func (t *ticket) save() bool {
	t.Process = process.Self()
	text, err := lokt.Marshal(t)
	dir, part := filepath.Dir(t.file), fmt.Sprintf("%s.%d", t.file, os.Getpid())
	if err != nil || os.MkdirAll(dir, 0o700) != nil {
		return false
	}
	if t.turn == nil {
		if alone, _ := t.lock(); !alone {
			return false
		}
	}
	_ = os.Chtimes(t.turn.Path(), time.Time{}, time.Now())
	all, _ := os.ReadDir(dir)
	for _, e := range all {
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > ticketAge {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return os.WriteFile(part, text, 0o600) == nil && os.Rename(part, t.file) == nil
}

// take returns the ticket of that ID for this process to go on with, if no other does.
func take(id string) (*ticket, error) {
	t, err := read(id)
	if err != nil {
		return nil, err
	}
	alone, err := t.lock()
	if err != nil {
		return nil, fmt.Errorf("ticket %s cannot be taken: %w", id, err)
	}
	if alone { // it may be another's by now
		turn := t.turn
		if t, err = read(id); err != nil {
			return nil, err
		}
		t.turn = turn
	}
	switch alive := process.Check(t.Process, true); {
	case !alone, alive == process.Alive:
		return nil, app.Hint(fmt.Errorf("pid %d still waits with ticket %s", t.Process.PID, id), "leave it to that, or end it first: kill %d", t.Process.PID)
	case alive == process.Unknown:
		clear(t.Places) // two that wait under one lease would both get it
		clear(t.Held)
	}
	if t.Wait++; !t.save() {
		return nil, fmt.Errorf("ticket %s cannot be kept", id)
	}
	return t, nil
}
