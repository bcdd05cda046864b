package sqlstore

// What is done when the disk is full. Writing the rows of the tables for what is in the journals takes room; a row of a journal takes
// next to none, and often overwrites what the log of transactions had there. So while there is no room for more, the journals alone are
// written, which then grow beyond what they are otherwise let grow to, and the tables follow when there is room again.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Bounds on what may be in a journal only, for want of room: all of it is in memory too, and is read again by who opens the database.
const (
	mostUnfolded      = 1 << 16  // changes
	mostUnfoldedBytes = 64 << 20 // of rows
)

// For how long the tables are left alone when there was no room for them: at least foldPause, and so many times as long as it took to
// find that out.
const (
	foldPause  = 10 * foldEvery
	foldFactor = 20
)

// cramped is the error of a transaction for which there was no room, and of which it is known that nothing is stored.
type cramped struct{ error }

func (c cramped) Unwrap() error { return c.error }

func isCramped(err error) bool {
	var c cramped
	return errors.As(err, &c)
}

// squeeze stores a batch after it failed for want of room. What the log of transactions has is moved into the database's file, so that the
// log can start over; then, if nobody insists on the tables, the journals are written alone.
func (d *fileDB) squeeze(ctx context.Context, b *batch, err error) error {
	untried := isCramped(err)
	if err = d.cramp(ctx, b, err); untried || !isCramped(err) {
		return err
	}
	begin := time.Now()
	if err := d.move(ctx); d.failure != nil {
		return err
	}
	if err = d.storeAgain(ctx, b); !isCramped(err) || !b.fold && !b.foldLocks {
		return err
	}
	d.foldAgain, d.foldError = time.Now().Add(max(foldPause, foldFactor*time.Since(begin))), err
	if b.foldAsked {
		return err
	}
	b.journalOnly, b.fold, b.foldLocks = true, false, false
	return d.storeAgain(ctx, b)
}

func (d *fileDB) storeAgain(ctx context.Context, b *batch) error {
	err := d.store(ctx, b)
	if full(err) || isCramped(err) {
		err = d.cramp(ctx, b, err)
	}
	return err
}

// cramp ends a transaction for which there was no room. The error is a cramped one if that is certain.
func (d *fileDB) cramp(ctx context.Context, b *batch, err error) error {
	switch {
	case !d.undo(ctx, b):
		return fmt.Errorf("%w: %s", lokt.ErrUnavailable, err.Error())
	case isCramped(err):
		return err
	}
	return cramped{err}
}

// undo ends a transaction that failed, and reports whether it is certain that nothing of it is stored and none is open. When SQLite
// finds that there is no room, it has not written the last page of the transaction, without which the others do not count.
func (d *fileDB) undo(ctx context.Context, b *batch) bool {
	_ = d.writer.exec(ctx, "ROLLBACK") // it may have been rolled back already
	d.jobs.fresh, d.jobs.ended = b.freshBefore, -1
	err := d.writer.exec(ctx, "BEGIN IMMEDIATE")
	if err == nil {
		err = d.writer.exec(ctx, "ROLLBACK")
	}
	return err == nil
}

// spares reports whether a journal that has become long is left as it is, for want of room.
func (d *fileDB) spares(b *batch, changes, bytes int) bool {
	return (b.journalOnly || time.Now().Before(d.foldAgain)) && changes < mostUnfolded && bytes < mostUnfoldedBytes
}

// mayFold returns why it is not even tried to write the tables: there was no room a moment ago.
func (d *fileDB) mayFold(b *batch) error {
	if !b.foldAsked && time.Now().Before(d.foldAgain) {
		return d.foldError
	}
	return nil
}

// probe finds out whether there is room for anything. It takes as much as a row of a journal.
func (d *fileDB) probe(ctx context.Context, q querier) error {
	return q.exec(ctx, "UPDATE state SET clock = max(clock, ?)", d.clock.now().UnixNano())
}

// amend adds to what was read from the tables what is in the journal only, which some of it may be in the tables by now.
func amend(rows *jobs.Rows, all []*jobs.Changes) {
	if len(all) == 0 {
		return
	}
	c := merge(all)
	living := make([]jobs.Job, len(c.Jobs))
	for i := range c.Jobs {
		living[i] = c.Jobs[i].Job
	}
	number := func(j *jobs.Job) uint64 { return j.Seq }
	rows.Jobs = overlay(rows.Jobs, keysOf(c.Ended, number), living, number)
	name := func(s *string) string { return *s }
	rows.Leases = overlay(rows.Leases, keysOf(c.Unleased, name), c.Leases, func(l *jobs.Lease) string { return l.ID })
	rows.Keys = overlay(rows.Keys, keysOf(c.Dropped, name), c.Keys, func(k *jobs.Key) string { return k.Key })
	request := func(a *jobs.Answered) [2]string { return [2]string{a.WorkerID, a.RequestID} }
	rows.Answered = overlay(rows.Answered, keysOf(c.Forgot, request), c.Answered, request)
	type attempt struct {
		job    string
		number int
	}
	alive := keysOf(rows.Jobs, func(j *jobs.Job) string { return j.ID })
	var attempts []jobs.Attempt
	for _, a := range overlay(rows.Attempts, nil, c.Attempts, func(a *jobs.Attempt) attempt { return attempt{a.JobID, a.Number} }) {
		if alive[a.JobID] {
			attempts = append(attempts, a)
		}
	}
	rows.Attempts = attempts
	if c.Refrozen {
		rows.Frozen = append([]string(nil), c.Frozen...)
	}
	rows.Counters = c.Counters
	rows.Sort()
}

func keysOf[K comparable, T any](all []T, key func(*T) K) map[K]bool {
	keys := make(map[K]bool, len(all))
	for i := range all {
		keys[key(&all[i])] = true
	}
	return keys
}

// overlay returns what there is, without what is gone, and with what was put in the place of what has the same key, or after it.
func overlay[K comparable, T any](have []T, gone map[K]bool, put []T, key func(*T) K) []T {
	last := make(map[K]int, len(put))
	for i := range put {
		last[key(&put[i])] = i
	}
	all := make([]T, 0, len(have)+len(put))
	for i := range have {
		k := key(&have[i])
		if _, replaced := last[k]; !replaced && !gone[k] {
			all = append(all, have[i])
		}
	}
	for i := range put {
		if last[key(&put[i])] == i {
			all = append(all, put[i])
		}
	}
	return all
}
