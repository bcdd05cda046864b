package filestore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/lockfile"
)

// The journal makes one step of a change of several files, and of files and audit log. An entry for one file says what
// the file was before: if it still is, the change was not made. An entry for several has their contents: once it is in
// the guard file the change is made.

// entry is a change in the journal.
type entry struct {
	Name  string      `json:"name,omitzero"` // of the lock
	Boot  string      `json:"boot,omitzero"` // of the kernel under which it was made, if it has contents
	Files []entryFile `json:"files,omitempty"`
	Carry string      `json:"carry,omitzero"` // lines of earlier changes that the audit log lacks
	Lines string      `json:"lines,omitzero"` // lines for the audit log, if the change is made
}

// entryFile is one file of a change.
type entryFile struct {
	File   int     `json:"file"`
	Before uint64  `json:"before"`        // contentOf what it was
	Redo   bool    `json:"redo,omitzero"` // the rest is set, and is to be stored if it was not
	Gone   bool    `json:"gone,omitzero"` // it is removed
	Data   []byte  `json:"data"`
	How    durable `json:"how,omitzero"`
}

// What an entry may have at most.
const (
	maxEntry = 2 * files * lockfile.MaxSize // as base64
	maxCarry = 1 << 20                      // bytes of lines kept for an audit log that cannot be written
)

// The contents of a file that has none.
const (
	contentAbsent     = 0
	contentUnreadable = 1
)

// contentOf tells contents of a file apart, by what reading it gave.
func contentOf(data []byte, err error) uint64 {
	switch {
	case err != nil:
		return contentUnreadable
	case data == nil:
		return contentAbsent
	}
	h := fnv.New64a()
	_, _ = h.Write(data)
	return max(h.Sum64(), contentUnreadable+1)
}

// durable reports whether more than one file of the entry must survive the loss of power: the entry must, then.
func (e *entry) durable() bool {
	n := 0
	for _, f := range e.Files {
		if f.Redo && f.How != volatile {
			n++
		}
	}
	return n > 1
}

// binding reports whether contents of the entry that are not there are missing. After the loss of power an entry may be back
// that was done long before, and what it stored ended, but not one that must survive: its end is on the disk.
func (e *entry) binding(boot string) bool { return e.Boot == "" || e.Boot == boot || e.durable() }

// decodeEntry reads an entry; nil if it is anything else.
func decodeEntry(b []byte) *entry {
	e := &entry{}
	if json.Unmarshal(b, e) != nil || len(e.Files) > 0 && lokt.ValidateName(e.Name) != nil {
		return nil
	}
	for _, f := range e.Files {
		if f.File < 0 || f.File >= files || !f.Gone && f.Data == nil {
			return nil
		}
	}
	return e
}

// after returns the file's contents after the change; nil if there is none.
func (f entryFile) after() []byte {
	if f.Gone {
		return nil
	}
	return f.Data
}

// recover finishes the change that the journal announces, if it was begun. Lines that the audit log lacks go there with
// those of the next change.
func (g *guard) recover() error {
	e := g.entry
	if e == nil {
		return nil
	}
	g.pending = true
	made := true
	for _, f := range e.Files {
		now := g.s.contentNow(e.Name, f.File)
		switch {
		case !f.Redo:
			made = now != f.Before
		case now == f.Before && e.binding(g.boot):
			err := g.s.replace(f.File, e.Name, f.after(), f.How, f.Before)
			if err != nil && !errors.Is(err, atomicfile.ErrInDoubt) {
				return fmt.Errorf("finish a change of lock %q that was cut short: %w", e.Name, err)
			}
		}
	}
	lines := e.Carry
	if made {
		lines += e.Lines
	}
	if lines != "" {
		g.carry = g.s.notLogged(lines)
	}
	if e.durable() {
		g.abandon()
		return g.f.Sync()
	}
	return nil
}

// contentNow returns the contentOf one of the lock's files.
func (s *Store) contentNow(name string, file int) uint64 {
	data, _, err := s.readFile(file, name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return contentOf(data, err)
}

// notLogged returns those of the lines that the audit log lacks.
func (s *Store) notLogged(lines string) string {
	missing := slices.Collect(strings.Lines(lines))
	var since time.Time
	for _, line := range missing {
		var e struct {
			TS time.Time `json:"ts"`
		}
		if json.Unmarshal([]byte(line), &e) == nil && (since.IsZero() || e.TS.Before(since)) {
			since = e.TS
		}
	}
	for e, err := range s.log.Read(context.Background(), audit.Query{Since: since}) {
		if len(missing) == 0 {
			break
		}
		if err != nil { // what cannot be read is not there: better told twice than never
			continue
		}
		missing = slices.DeleteFunc(missing, func(line string) bool {
			return len(e.Raw) > 0 && strings.TrimSuffix(line, "\n") == string(e.Raw)
		})
	}
	return strings.Join(missing, "")
}

// log appends the lines to the audit log, behind those left from before, once all files are written. If that fails it
// keeps them in the journal.
func (g *guard) log(lines string) {
	lines = g.carry + lines
	if lines != "" {
		if err := g.s.log.Append([]byte(lines)); err != nil && !errors.Is(err, audit.ErrNotRotated) {
			g.s.o.Warn(fmt.Errorf("audit log: %w", err))
			g.keep(lines)
			return
		} else if err != nil {
			g.s.o.Warn(err)
		}
	}
	g.carry = ""
	g.s.dropped.Store(false)
	if err := g.journal(nil); err != nil {
		g.s.o.Warn(fmt.Errorf("%s: %w", g.f.Name(), err)) // whoever comes next sees that everything is done
	}
}

// errDropped is what a store warns of once, until its audit log can be written again.
var errDropped = errors.New("audit log: it could not be written for so long that the oldest entries which wait for it are dropped")

// keep leaves the lines in the journal. If there are very many the oldest are dropped.
func (g *guard) keep(lines string) {
	if over := len(lines) - maxCarry; over > 0 {
		lines = lines[over+strings.IndexByte(lines[over:], '\n')+1:]
		if !g.s.dropped.Swap(true) {
			g.s.o.Warn(errDropped)
		}
	}
	g.carry = lines
	g.abandon()
}

// abandon notes that no change is begun.
func (g *guard) abandon() {
	var e *entry
	if g.carry != "" {
		e = &entry{Carry: g.carry}
	}
	if err := g.journal(e); err != nil {
		g.s.o.Warn(fmt.Errorf("%s: %w", g.f.Name(), err))
	}
}
