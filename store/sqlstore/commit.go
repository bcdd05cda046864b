package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// batch is what one transaction stores.
type batch struct {
	now    time.Time
	were   map[string]*entry // locks as they are stored
	locks  map[string]*entry // those that changed, as the requests leave them
	told   [][]lokt.Event    // the events of each change
	events int               // how many
	jobs   []*jobs.Changes
	fold   bool // what the journal of jobs has is to be in the tables

	foldLocks bool   // what that of locks has
	body      []byte // of the row of that journal, if there is to be one
	packed    int    // bytes of the rows of that of jobs
	writes    []func(context.Context, querier) error

	foldAsked   bool // that the tables are complete was asked for, and not only found to be in order
	journalOnly bool // it is stored in the journals alone, as far as they may grow
	freshBefore int  // what jobs had as fresh before
}

// commit runs the requests and stores what they change. Requests that fail by themselves have their error set.
func (d *fileDB) commit(rs []*request) (err error) {
	begin := time.Now()
	ctx := context.Background()
	if err = d.failure; err == nil {
		err = d.present()
	}
	if err == nil && d.suspect != nil {
		err = d.recover(ctx)
	}
	if err != nil {
		for _, r := range rs {
			r.err = err
		}
		return err
	}
	d.catchUp(ctx, rs)
	b := &batch{were: map[string]*entry{}, locks: map[string]*entry{}, freshBefore: d.jobs.fresh}
	for _, r := range rs {
		if r.err == nil && r.panicked == nil {
			d.decide(ctx, b, r)
		}
	}
	if b.empty() {
		d.fillReserve()
		return nil
	}
	defer func() { d.observe("commit", begin, err) }()
	if d.refuses(b) {
		d.noRoom = true
		return cramped{fmt.Errorf("%w: %w", lokt.ErrUnavailable, errReserve)}
	}
	b.foldAsked = b.fold || b.foldLocks
	if err = d.store(ctx, b); full(err) || isCramped(err) {
		err = d.useReserve(ctx, b, d.squeeze(ctx, b, err))
	}
	if d.noRoom = isCramped(err); d.noRoom {
		return translate(err)
	}
	if err != nil {
		d.flushed(err)
		if !single(err) {
			d.suspect = err
		}
		if e := d.writer.exec(ctx, "ROLLBACK"); e != nil && d.suspect == nil {
			d.suspect = err // it may have been rolled back already
		}
		return translate(err)
	}
	if b.fold || b.foldLocks {
		d.foldAgain = time.Time{}
	}
	d.locks.publish(b)
	d.jobs.stored(b)
	d.checkpoint(ctx)
	d.extend()
	d.fillReserve()
	return nil
}

// run runs a request's change of a lock.
func (b *batch) run(r *request, have *entry, now time.Time) {
	var c lokt.Change
	if !r.guard(func() { c = r.change(lokt.Snapshot{Lock: have.lock.Clone(), Now: now}) }) {
		return
	}
	c.Lock.Name, c.Lock.Revision = r.name, have.lock.Revision
	if !same(&c.Lock, &have.lock) {
		next := &entry{lock: c.Lock.Clone()}
		next.lock.Revision++
		b.locks[r.name] = next
	}
	if len(c.Events) > 0 {
		b.told = append(b.told, cloneEvents(c.Events))
	}
}

func (b *batch) empty() bool {
	return len(b.locks) == 0 && len(b.told) == 0 && len(b.jobs) == 0 && len(b.writes) == 0 && !b.fold && !b.foldLocks
}

// decide runs what the request is for.
func (d *fileDB) decide(ctx context.Context, b *batch, r *request) {
	if r.fold && (r.write != nil || len(d.jobs.unfolded()) > 0) {
		b.fold = true
	}
	b.foldLocks = b.foldLocks || r.fold && d.locks.unfolded()
	switch {
	case r.change != nil:
		r.err = d.locks.decide(ctx, b, r)
	case r.turn != nil:
		if !r.turned {
			r.turned = true
			r.guard(func() { r.changes = r.turn(jobs.Facts{}) })
		}
		if r.panicked == nil && !r.changes.Empty() {
			b.jobs = append(b.jobs, &r.changes)
		}
	case r.write != nil:
		b.writes = append(b.writes, r.write)
	case d.noRoom && !r.fold:
		b.writes = append(b.writes, d.probe)
	}
}

// errEnded is what a request's function that ends its goroutine (runtime.Goexit, testing.T.Fatal) counts as having panicked with.
var errEnded = errors.New("change ended its goroutine")

// guard runs what others wrote, keeps what they panicked with, and reports whether they did not. If they end the goroutine, that is
// noted, but it does end: group.serve has another one go on.
func (r *request) guard(run func()) (returned bool) {
	defer func() {
		if !returned {
			if r.panicked = recover(); r.panicked == nil {
				r.panicked = errEnded
			}
		}
	}()
	run()
	return true
}

// store writes the batch in a transaction.
func (d *fileDB) store(ctx context.Context, b *batch) error {
	b.now = d.clock.now()
	// What is in the journal is flushed already: that it is in the tables need not be.
	lazy := len(b.jobs) == 0 && len(b.writes) == 0 && d.locks.lazy(b)
	if lazy == d.synced { // it cannot be changed within a transaction
		mode := map[bool]string{true: "NORMAL", false: "FULL"}[lazy]
		if err := d.writer.once(ctx, "PRAGMA synchronous = "+mode); err != nil {
			return err
		}
		d.synced = !lazy
	}
	if d.locks.prepare(b); b.body != nil && len(b.jobs) == 0 && len(b.writes) == 0 && !b.fold {
		return d.locks.write(ctx, d.writer, b) // one row: a transaction of its own
	}
	if err := d.writer.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := d.locks.write(ctx, d.writer, b); err != nil {
		return err
	}
	if err := d.jobs.write(ctx, d.writer, b); err != nil {
		return err
	}
	for _, w := range b.writes {
		if err := w(ctx, d.writer); err != nil {
			return err
		}
	}
	return d.writer.exec(ctx, "COMMIT")
}

// recover finds out what is stored after a transaction of which that is not known. Part of the log of transactions may be missing
// on the disk, and a system reports that only once; so before anything more is stored, what the log has is moved into the
// database's file, which writes and flushes it again, and the log is cut off.
func (d *fileDB) recover(ctx context.Context) (err error) {
	begin := time.Now()
	defer func() { d.observe("recover", begin, err) }()
	fail := func(err error) error {
		if full(err) {
			d.giveReserve(reserveSize) // for when it is tried again
		}
		return translate(fmt.Errorf("%w: since an earlier failure (%w) nothing can be stored: %w", lokt.ErrUnavailable, d.suspect, err))
	}
	_ = d.writer.exec(ctx, "ROLLBACK") // if there is still something to roll back
	busy, err := one(ctx, d.writer, "PRAGMA wal_checkpoint(TRUNCATE)")
	d.flushed(err)
	if err != nil {
		return fail(err)
	}
	if busy != 0 {
		return fail(errors.New("the database is being read"))
	}
	// Only what is stored shows that something can be stored again.
	if err := d.writer.exec(ctx, "UPDATE state SET clock = ?", d.clock.now().UnixNano()); err != nil {
		d.flushed(err)
		return fail(err)
	}
	err = d.reload(ctx)
	d.flushed(err)
	if d.jobs.behind = full(err); err != nil && !d.jobs.behind { // locks may need no more room than they have
		return fail(err)
	}
	d.suspect, d.moved = nil, d.writer.written()
	d.locks.mu.Lock()
	d.locks.arm(d.locks.foldAfter)
	d.locks.mu.Unlock()
	return nil
}

// catchUp writes the rows of what is in the journal of jobs if there was no room for them, and one of the requests is about jobs. Those
// fail if there is none yet.
func (d *fileDB) catchUp(ctx context.Context, rs []*request) {
	ofJobs := func(r *request) bool { return r.turn != nil || r.fold }
	if !d.jobs.behind || !slices.ContainsFunc(rs, ofJobs) {
		return
	}
	err := d.jobs.load(ctx, d.writer)
	if err == nil {
		return
	}
	d.flushed(err)
	if !full(err) {
		d.suspect = err
	}
	for _, r := range rs {
		if d.suspect != nil || ofJobs(r) {
			r.err = translate(err)
		}
	}
}
