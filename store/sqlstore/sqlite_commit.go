package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// batch is what one transaction stores.
type batch struct {
	now    time.Time
	locks  map[string]*change // those that changed
	events []lokt.Event       // of all changes
	turns  []*jobs.Changes
	writes []func() error
	flush  bool // even if it changes nothing
}

// change is what becomes of a lock.
type change struct {
	entry *entry    // as it is stored
	lock  lokt.Lock // as the requests leave it
}

func (d *fileDB) newBatch() *batch {
	return &batch{now: d.clock.now(), locks: map[string]*change{}, flush: d.noRoom}
}

// commit runs the requests, and those that more returns if nobody is told yet of what they change, and stores that. Requests
// that fail by themselves have their error set.
func (d *fileDB) commit(rs []*request, more func() []*request) (err error) {
	if err := d.ready(); err != nil {
		return err
	}
	b := d.newBatch()
	if d.runAll(b, rs) && more != nil && b.onlyQueued() { // as a rule who passes the lock on is about to come
		others := more()
		b.now = d.clock.now() // this process may have stood still: nobody's time begins before they asked
		d.runAll(b, others)
	}
	begin := time.Now()
	if len(b.locks)+len(b.events)+len(b.turns)+len(b.writes) > 0 || b.flush {
		if err = d.store(b); full(err) { // the log may start over when it is in the file
			_, _ = d.write.exec("ROLLBACK")
			if d.checkpoint(); d.failure == nil {
				err = d.store(b)
			}
		}
		d.options.observe("commit", begin, err)
		if d.noRoom = full(err); err != nil {
			return d.broken(err)
		}
		d.locks.publish(b)
	}
	pages := d.write.written() - d.moved
	if pages >= d.checkpointAt || pages > 0 && b.now.Sub(d.checkpointed) >= checkpointEvery {
		d.checkpoint()
	}
	return nil
}

// onlyQueued reports whether all that is to be stored is that somebody has come to wait.
func (b *batch) onlyQueued() bool {
	for _, c := range b.locks {
		was, is := &c.entry.lock, c.lock
		if len(is.Queue) <= len(was.Queue) {
			return false
		}
		if is.Queue = is.Queue[:len(was.Queue)]; !onlyRenewed(was, &is) {
			return false
		}
	}
	return len(b.locks) > 0 && len(b.turns)+len(b.writes) == 0 && !b.flush
}

// broken rolls back what failed, and notes what cannot be relied on since.
func (d *fileDB) broken(err error) error {
	d.flushed(err)
	if _, e := d.write.exec("ROLLBACK"); !full(err) && !single(err) {
		d.suspect = err
	} else if e != nil && !full(err) {
		d.suspect = errors.Join(err, e)
	}
	return translate(err)
}

// ready reports why nothing can be stored.
func (d *fileDB) ready() error {
	if d.failure != nil {
		return d.failure
	}
	if d.copied() {
		return d.fail(errCopied)
	}
	if err := d.present(); err != nil {
		if d.moved < d.write.written() { // what is in a log that was removed is saved
			d.checkpoint()
		}
		return err
	}
	if d.cut() {
		return d.fail(errCut)
	}
	if d.suspect != nil {
		return d.recover()
	}
	return nil
}

// runAll runs what the requests are for, or if that takes long what the first are for. It reports whether it ran all.
func (d *fileDB) runAll(b *batch, rs []*request) (all bool) {
	begin := time.Now()
	all = true
	for i, r := range rs {
		if r.later = i > 0 && time.Since(begin) > judging; r.later {
			all = false
			continue
		}
		d.run(b, r)
	}
	return all
}

// run runs what the request is for.
func (d *fileDB) run(b *batch, r *request) {
	switch {
	case r.change != nil:
		have, err := d.view(b, r.name)
		if err != nil {
			r.err = err
			return
		}
		var c lokt.Change
		if r.guard(func() { c = r.change(lokt.Snapshot{Lock: have.lock, Now: b.now}) }) {
			b.add(have, c)
		}
	case r.turn != nil:
		step := lokt.NewStep(func(name string) (lokt.Snapshot, error) {
			have, err := d.view(b, name)
			if errors.Is(err, lokt.ErrDamaged) { // it keeps everybody out, and is no reason why other jobs wait
				have.lock = lokt.Lock{Name: name, Freeze: &lokt.Freeze{Damaged: err.Error()}}
				err = nil
			}
			return lokt.Snapshot{Lock: have.lock, Now: b.now}, err
		})
		r.turned = true
		var c jobs.Changes
		if !r.guard(func() { c = r.turn(jobs.Facts{Locks: step}) }) {
			return
		}
		for _, changed := range step.Changes() {
			if have, err := d.view(b, changed.Lock.Name); err == nil { // the step has read it
				b.add(have, changed)
			}
		}
		if !c.Empty() {
			b.turns = append(b.turns, &c)
		}
	case r.write != nil:
		b.writes = append(b.writes, r.write)
	}
}

// view returns a lock as the requests so far leave it.
func (d *fileDB) view(b *batch, name string) (change, error) {
	if c := b.locks[name]; c != nil {
		return *c, nil
	}
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	e := d.locks.get(name)
	return change{e, e.lock}, e.damaged
}

// add takes a change of a lock that the requests so far leave as have says.
func (b *batch) add(have change, c lokt.Change) {
	c.Lock.Name, c.Lock.Revision = have.lock.Name, have.lock.Revision
	if !c.Lock.Equal(&have.lock) {
		c.Lock.Revision++
		b.locks[c.Lock.Name] = &change{have.entry, c.Lock}
	}
	b.events = append(b.events, c.Events...)
}

// store writes the batch in a transaction.
func (d *fileDB) store(b *batch) error {
	lazy := len(b.turns)+len(b.writes) == 0 && !b.flush
	for _, c := range b.locks {
		lazy = lazy && onlyRenewed(&c.entry.lock, &c.lock)
	}
	if lazy == d.full { // it cannot be changed within a transaction
		mode := map[bool]string{true: "NORMAL", false: "FULL"}[lazy]
		if err := d.write.script("PRAGMA synchronous = " + mode); err != nil {
			return err
		}
		d.full = !lazy
	}
	next := d.state
	next.Commits, next.Clock = next.Commits+1, b.now
	w := d.write
	_, w.err = w.exec("BEGIN IMMEDIATE")
	d.locks.write(b, &next)
	for _, c := range b.turns {
		d.jobs.write(c, &next)
	}
	for _, write := range b.writes {
		if w.err == nil {
			w.err = write()
		}
	}
	if lazy && len(b.events) == 0 && b.now.Sub(d.state.Clock) < time.Second { // renewals: only the clock has gone on
		next = d.state
	} else {
		next.write(w)
	}
	if w.do("COMMIT"); w.err != nil {
		return w.err
	}
	d.state = next
	d.unmoved.Store(true)
	poke(d.stored)
	if !lazy {
		return d.mark.write(&d.state)
	}
	return nil
}

// recover finds out what is stored after a transaction of which that is not known. Part of the log may be missing on
// the disk, and a system reports that only once; so before anything more is stored, what the log has is moved into
// the database's file, which writes and flushes it again, and the log is cut off.
func (d *fileDB) recover() (err error) {
	begin := time.Now()
	defer func() { d.options.observe("recover", begin, err) }()
	_, _ = d.write.exec("ROLLBACK") // if there is still something to roll back
	_, whole, err := d.write.checkpoint("TRUNCATE")
	if err == nil && !whole {
		err = errors.New("the database is being read")
	}
	if err == nil {
		d.state, err = readState(d.write.query)
	}
	if err == nil {
		err = d.locks.load()
	}
	if err == nil { // only what is stored shows that something can be stored again
		d.full = false // whatever it is
		b := d.newBatch()
		b.flush = true
		err = d.store(b)
	}
	if err != nil {
		d.flushed(err)
		return translate(fmt.Errorf("%w: since an earlier failure (%w) nothing can be stored: %w",
			lokt.ErrUnavailable, d.suspect, err))
	}
	d.suspect, d.moved = nil, 0
	return nil
}

// Bounds on the log, in pages of it that were written since the last time that all of it was in the database's file.
const (
	checkpointPages = 4000
	checkpointAgain = 1000 // after somebody who reads was in the way
)

// checkpoint moves what the log has into the database's file. SQLite would do that by itself, and keep quiet about
// what fails.
func (d *fileDB) checkpoint() {
	begin, written := time.Now(), d.write.written()
	_, whole, err := d.write.checkpoint("PASSIVE")
	d.options.observe("checkpoint", begin, err)
	d.flushed(err)
	d.checkpointed, d.moved = d.clock.now(), written
	d.unmoved.Store(false)
	if err != nil || !whole { // it is tried again
		d.moved -= max(d.checkpointAt-checkpointAgain, d.checkpointAt/2)
		d.unmoved.Store(true)
	} else {
		d.mark.text.Moved = d.state.Commits // for the next writing
	}
}

// onlyRenewed reports whether a lock differs only by what says that somebody is still there: no more is lost with
// such a change than what is given again when the database is opened.
func onlyRenewed(was, is *lokt.Lock) bool {
	return was.Token == is.Token && was.Corrupt == is.Corrupt && reflect.DeepEqual(was.Freeze, is.Freeze) &&
		slices.EqualFunc(was.Holders, is.Holders, func(a, b lokt.Holder) bool {
			b.AcquiredAt, b.ExpiresAt, b.Renewals = a.AcquiredAt, a.ExpiresAt, a.Renewals
			return reflect.DeepEqual(a, b)
		}) &&
		slices.EqualFunc(was.Queue, is.Queue, func(a, b *lokt.Waiter) bool {
			if a == b {
				return true
			}
			still := *b
			still.Until = a.Until
			return reflect.DeepEqual(*a, still)
		})
}

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
	Moved    uint64 `json:"moved,omitzero"` // commits that are in the database's file, too
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
