package filestore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/lockfile"
)

// The journal makes one step of a change of several files, and of files and audit log. An entry for one file says what
// the file was before: if it still is, the change was not made. An entry for several has their contents: from the
// moment that it is in the guard file the change is made, whoever sees to it that the files say so too.

// entry is a change in the journal.
type entry struct {
	name  string // of the lock
	files []entryFile
	carry []byte // lines of earlier changes that the audit log lacks
	lines []byte // for the audit log, if the change is made
}

// entryFile is one file of a change.
type entryFile struct {
	file   int
	before uint64 // contentOf what it was
	redo   bool   // the rest is set, and is to be stored if it was not
	gone   bool   // it is removed
	data   []byte
	how    durable
}

// What an entry may have at most.
const (
	maxEntry = files*lockfile.MaxSize + maxCarry + 64<<20
	maxCarry = 1 << 20 // bytes of lines kept for an audit log that cannot be written
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
	return max(mix(0, data), contentUnreadable+1)
}

// durable reports whether more than one file of the entry must survive the loss of power: the entry must, then.
func (e *entry) durable() bool {
	n := 0
	for _, f := range e.files {
		if f.redo && f.how != volatile {
			n++
		}
	}
	return n > 1
}

// mix returns a hash of data and of what h is a hash of. It need not withstand anybody.
func mix(h uint64, data []byte) uint64 {
	h ^= uint64(len(data))
	for ; len(data) >= 8; data = data[8:] {
		h = mixWord(h, binary.LittleEndian.Uint64(data))
	}
	var rest [8]byte
	copy(rest[:], data)
	return mixWord(h, binary.LittleEndian.Uint64(rest[:]))
}

func mixWord(h, word uint64) uint64 {
	h = (h ^ word) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// encode appends the entry to b.
func (e *entry) encode(b []byte) []byte {
	size := 64 + len(e.name) + len(e.carry) + len(e.lines)
	for _, f := range e.files {
		size += 32 + len(f.data)
	}
	b = append(binary.AppendUvarint(slices.Grow(b, size), uint64(len(e.name))), e.name...)
	b = append(b, byte(len(e.files)))
	for _, f := range e.files {
		b = append(b, byte(f.file), flag(f.redo)|flag(f.gone)<<1|byte(f.how)<<2)
		b = binary.LittleEndian.AppendUint64(b, f.before)
		b = appendBytes(b, f.data)
	}
	return append(appendBytes(b, e.carry), e.lines...)
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func appendBytes(b, data []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

// decodeEntry reads what encode wrote; nil if it is anything else.
func decodeEntry(b []byte) *entry {
	next := func() []byte {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			b = nil
			return nil
		}
		data := b[used : used+int(n)]
		b = b[used+int(n):]
		return data
	}
	e := &entry{name: string(next())}
	if len(b) == 0 {
		return nil
	}
	n := int(b[0])
	b = b[1:]
	for range n {
		if len(b) < 10 || b[0] >= files {
			return nil
		}
		f := entryFile{file: int(b[0]), redo: b[1]&1 != 0, gone: b[1]&2 != 0, how: durable(b[1] >> 2)}
		f.before = binary.LittleEndian.Uint64(b[2:])
		b = b[10:]
		if f.data = next(); b == nil {
			return nil
		}
		e.files = append(e.files, f)
	}
	if e.carry = next(); b == nil || n > 0 && lokt.ValidateName(e.name) != nil {
		return nil
	}
	e.lines = b
	return e
}

// after returns what the file is after the change; nil if there is none.
func (f entryFile) after() []byte {
	if f.gone {
		return nil
	}
	return f.data
}

// recover finishes the change that the journal announces, if it was begun. What the audit log lacks goes there together
// with what the next change has to say.
func (g *guard) recover() error {
	e := g.entry
	if e == nil {
		return nil
	}
	g.pending = true
	made := true
	for _, f := range e.files {
		now := g.s.contentNow(e.name, f.file)
		switch {
		case !f.redo:
			made = now != f.before
		case now == f.before:
			err := g.s.replace(f.file, e.name, f.after(), f.how, f.before)
			if err != nil && !errors.Is(err, atomicfile.ErrInDoubt) {
				return fmt.Errorf("finish a change of lock %q that was cut short: %w", e.name, err)
			}
		}
	}
	lines := e.carry
	if made {
		lines = slices.Concat(lines, e.lines)
	}
	if len(lines) > 0 {
		g.carry = g.s.notLogged(lines)
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
func (s *Store) notLogged(lines []byte) []byte {
	missing := slices.Collect(bytes.Lines(lines))
	var since time.Time
	for _, line := range missing {
		var e struct {
			TS time.Time `json:"ts"`
		}
		if json.Unmarshal(line, &e) == nil && (since.IsZero() || e.TS.Before(since)) {
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
		missing = slices.DeleteFunc(missing, func(line []byte) bool {
			return len(e.Raw) > 0 && bytes.Equal(bytes.TrimSuffix(line, []byte{'\n'}), e.Raw)
		})
	}
	return slices.Concat(missing...)
}

// log appends the lines to the audit log, behind those that are left from before. If that fails it keeps them in the
// journal, for whoever changes a lock of the shard next. It is called when all files say what they should.
func (g *guard) log(lines []byte) {
	lines = append(slices.Clip(g.carry), lines...)
	if len(lines) > 0 {
		if err := g.s.log.Append(lines); err != nil && !errors.Is(err, audit.ErrNotRotated) {
			g.s.o.Warn(fmt.Errorf("audit log: %w", err))
			g.keep(lines)
			return
		} else if err != nil {
			g.s.o.Warn(err)
		}
	}
	g.carry = nil
	if err := g.journal(nil); err != nil {
		g.s.o.Warn(fmt.Errorf("%s: %w", g.f.Name(), err)) // whoever comes next sees that everything is done
	}
}

// keep leaves the lines in the journal. If there are very many the oldest are dropped.
func (g *guard) keep(lines []byte) {
	if over := len(lines) - maxCarry; over > 0 {
		lines = lines[over+bytes.IndexByte(lines[over:], '\n')+1:]
	}
	g.carry = lines
	if err := g.journal(&entry{carry: lines}); err != nil {
		g.s.o.Warn(fmt.Errorf("%s: %w", g.f.Name(), err))
	}
}

// abandon notes that the change that was announced was not begun.
func (g *guard) abandon() {
	var e *entry
	if len(g.carry) > 0 {
		e = &entry{carry: g.carry}
	}
	if err := g.journal(e); err != nil {
		g.s.o.Warn(fmt.Errorf("%s: %w", g.f.Name(), err))
	}
}

// encodeEvents returns the events as lines of the audit log.
func encodeEvents(events []lokt.Event) []byte {
	if len(events) == 0 {
		return nil
	}
	return audit.Encode(events)
}
