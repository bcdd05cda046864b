package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

	"github.com/lokt-dev/lokt"
)

// mark is the file beside a database of SQLite that says how far its log had come, and which process has the database:
// that one has a kernel lock on it. SQLite takes a damaged log for one that ends early, and one that is missing for one
// that was never there; the mark tells. It is written with every transaction that was flushed, and flushed itself some
// times a second. So it is exact unless the power fails, and then behind by that much.
//
// Nobody removes the file, because whoever did could lock another file than who comes next.
type mark struct {
	lock  *flock.Flock
	file  *os.File
	text  markText
	dirty atomic.Bool // written, and not flushed
}

// markText is what the mark says.
type markText struct {
	Number   uint64 `json:"number"`            // of the writing: the higher one holds
	Database string `json:"database,omitzero"` // empty if nothing was ever stored
	Commits  uint64 `json:"commits"`
	highest
	Clean   bool   `json:"clean,omitzero"`   // the database was closed
	Process string `json:"process,omitzero"` // that has the database
}

// markPart is how long the three parts of a mark are. The first says nothing: where kernel locks are mandatory, others cannot
// read it. The others are written in turn, so that one is whole whenever a writing is interrupted.
const markPart = 4096

func markPath(path string) string { return path + "-mark" }

// readMark reads the mark of a database: nothing if there is none. It is damaged if no part can be read.
func readMark(path string) (m markText, err error) {
	f, err := os.Open(markPath(path))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	} else if err != nil {
		return m, unavailable(err)
	}
	b := make([]byte, 2*markPart)
	n, _ := f.ReadAt(b, markPart) // less if it was being made
	_ = f.Close()
	for _, part := range [][]byte{b[:markPart], b[markPart:]} {
		line, _, _ := bytes.Cut(part, []byte("\n"))
		sum, text, _ := bytes.Cut(line, []byte(" "))
		var said markText
		if string(sum) == fmt.Sprintf("%08x", checksum(text)) && lokt.Unmarshal(text, &said) == nil &&
			said.Number > m.Number {
			m = said
		}
	}
	if n > 0 && m.Number == 0 {
		return m, fmt.Errorf("%w: mark %s, which says how far the log had come", lokt.ErrDamaged, markPath(path))
	}
	return m, nil
}

// openMark takes the mark of a database for this process. If another one has it, the error wraps lokt.ErrUnavailable and
// says which.
func openMark(path string, o *Options) (_ *mark, err error) {
	m := &mark{}
	if m.lock, err = lockKernel(markPath(path)); errors.Is(err, errInUse) {
		was, _ := readMark(path)
		by := cmp.Or(was.Process, "another process")
		return nil, fmt.Errorf("%w: database %s is in use by %s", lokt.ErrUnavailable, path, by)
	} else if err != nil {
		return nil, unavailable(err)
	}
	if m.text, err = readMark(path); errors.Is(err, lokt.ErrDamaged) {
		o.warn(err)
		err = nil
	}
	if err == nil {
		m.file, err = os.OpenFile(markPath(path), os.O_WRONLY, 0)
	}
	if err == nil {
		who := strings.Map(func(r rune) rune { return max(r, ' ') }, fmt.Sprintf("process %d %s", os.Getpid(), o.Describe))
		m.text.Process = strings.ToValidUTF8(strings.TrimSpace(who[:min(len(who), markPart/4)]), "")
		err = m.put()
	}
	if err != nil {
		return nil, errors.Join(unavailable(err), m.lock.Close())
	}
	return m, nil
}

// write says how far the database has come.
func (m *mark) write(s *state) error {
	m.text.Database, m.text.Commits, m.text.highest, m.text.Clean = s.Database, s.Commits, s.highest, false
	return m.put()
}

func (m *mark) put() error {
	m.text.Number++
	text, err := lokt.Marshal(m.text)
	if err == nil {
		m.dirty.Store(true)
		line := fmt.Appendf(nil, "%08x %s\n", checksum(text), text)
		_, err = m.file.WriteAt(line, markPart*int64(1+m.text.Number%2))
	}
	return unavailable(err)
}

// flush flushes what was written.
func (m *mark) flush() error {
	if !m.dirty.Swap(false) {
		return nil
	}
	return m.file.Sync()
}

// close gives the database back. Whose it was is of no use to the next who reads it.
func (m *mark) close() error {
	m.text.Process = ""
	return errors.Join(m.put(), m.flush(), m.file.Close(), m.lock.Close())
}

// patience is how long a second process waits for the first to end.
const patience = 500 * time.Millisecond

var errInUse = errors.New("it is in use by another process")

// lockKernel takes the lock on a file that the kernel gives back when the process ends.
func lockKernel(path string) (*flock.Flock, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	f := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600))
	got, err := f.TryLockContext(ctx, 20*time.Millisecond)
	if got {
		return f, nil
	} else if errors.Is(err, context.DeadlineExceeded) {
		err = errInUse
	}
	return nil, errors.Join(err, f.Close())
}

// endsEarly reports whether a log of SQLite goes on behind its end, which is after so many pages: there are others of the same
// log that end a transaction. Such pages are left by a damaged log; but also by a loss of power, when the end of a
// transaction that nobody was told of came to the disk before its beginning.
func endsEarly(path string, pages int) bool {
	log, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = log.Close() }()
	header, frame := make([]byte, 32), make([]byte, 24) // https://www.sqlite.org/fileformat2.html#the_write_ahead_log
	_, err = log.ReadAt(header, 0)
	for at := int64(len(header)) + int64(pages)*logFrame; err == nil; at += logFrame {
		_, err = log.ReadAt(frame, at)
		if err == nil && bytes.Equal(frame[8:16], header[16:24]) && binary.BigEndian.Uint32(frame[4:]) != 0 {
			return true
		}
	}
	return false
}

// logFrame is how long a page is in the log, with what the log says about it.
const logFrame = 4096 + 24

// rewriteFile writes a file, if there is one, with what it has, and flushes it. What an earlier process wrote and a
// system could not flush is read from memory by who comes next as if it were on the disk, and is not flushed by
// flushing: only what is written again is.
func rewriteFile(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
