package sqlstore

// A row of a journal that cannot be read keeps a database of SQLite from being opened: nobody knows what it said. Here it is set aside, because
// somebody said so.

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/vfs"
	"github.com/lokt-dev/lokt/jobs"
)

// Aside is a row of a journal that was set aside, as it is written to the file: one JSON object a line.
type Aside struct {
	Table   string `json:"table"`
	Row     int64  `json:"row"`
	Damaged bool   `json:"damaged"` // it cannot be read; otherwise it can, but builds on one before it that cannot
	Body    []byte `json:"body"`

	// Of rows that can be read: the jobs that were submitted, that changed, and that ended.
	Submitted []string `json:"submitted,omitempty"`
	Changed   []string `json:"changed,omitempty"`
	Ended     []string `json:"ended,omitempty"`
}

// asideGap is by how much numbers go on beyond those that what was set aside may have used: no row has so many.
const asideGap = 1 << 16

// SetAside takes the rows that cannot be read out of the journals of a database of SQLite, which nobody may use meanwhile and which must
// exist, and writes them to a new file before. Without such a row it changes nothing, makes no file, and returns none.
//
// What such a row said is forgotten, and nobody knows what it was: at most what was acknowledged within one transaction. Rows of the
// journal of locks after it are kept, because they say what holds and waits with all that belongs to it. Rows of the journal of jobs
// after it say only what differs, so they are set aside, too: jobs are as they were before the damaged row.
//
// Tokens and revisions of locks, tokens of jobs, and the numbers of events then go on above all that were given. It has opened the
// database when it returns without an error.
func SetAside(ctx context.Context, url, file string, o Options) (all []Aside, err error) {
	path, _, ok := File(url)
	if !ok {
		return nil, fmt.Errorf("%w: only databases of SQLite have such rows", lokt.ErrInvalid)
	}
	if _, err := os.Lstat(file); err == nil {
		return nil, fmt.Errorf("%w: %s: %w", lokt.ErrInvalid, file, os.ErrExist)
	}
	if path, err = resolve(path); err != nil {
		return nil, unavailable(err)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("%w: %w", lokt.ErrInvalid, err)
	}
	if all, err = setAside(ctx, path, file, o); err != nil || len(all) == 0 {
		return nil, err
	}
	db, err := Open(ctx, "sqlite:"+path+mustExist, o)
	if err != nil {
		return all, fmt.Errorf("rows are set aside, but it cannot be opened: %w", err)
	}
	d := db.backend.(*fileDB)
	_, err = d.jobs.Load(ctx)
	err = errors.Join(err, d.group.perform(ctx, &request{fold: true, write: func(ctx context.Context, q querier) error {
		return q.exec(ctx, "UPDATE state SET lock_event = lock_event + ?", asideGap)
	}}))
	return all, errors.Join(err, db.Close())
}

// setAside does so, but for what is done when the database is open.
func setAside(ctx context.Context, path, file string, o Options) (_ []Aside, err error) {
	side, err := lockBeside(path, o.Describe)
	if err != nil {
		return nil, err
	}
	d := &fileDB{path: path, options: o, side: side}
	defer func() { err = errors.Join(err, d.release()) }()
	if d.writer, err = d.start(ctx, true); err != nil {
		return nil, translate(err)
	}
	all, next, err := unreadable(ctx, d.writer)
	if err != nil || len(all) == 0 {
		return nil, translate(err)
	}
	if err := writeAside(vfs.OS(), file, all); err != nil {
		return nil, unavailable(err)
	}
	if err := atomically(ctx, d.writer, func() error { return forget(ctx, d.writer, all, next) }); err != nil {
		return nil, translate(err)
	}
	return all, nil
}

// unreadable returns what is to be set aside, and the numbers that what can be read of it has used.
func unreadable(ctx context.Context, q querier) (all []Aside, next jobs.Counters, err error) {
	err = q.query(ctx, "SELECT id, body FROM lock_journal ORDER BY id", nil, func(r *row) error {
		a := Aside{Table: "lock_journal", Row: r.number(), Damaged: true, Body: slices.Clone(r.bytes())}
		if _, err := unpackLocks(a.Body); err != nil {
			all = append(all, a)
		}
		return nil
	})
	if err != nil {
		return nil, next, err
	}
	after := false
	err = q.query(ctx, "SELECT id, body FROM job_journal ORDER BY id", nil, func(r *row) error {
		a := Aside{Table: "job_journal", Row: r.number(), Body: slices.Clone(r.bytes())}
		c, err := unpackChanges(a.Body)
		if a.Damaged = err != nil; !a.Damaged {
			a.tell(c)
		}
		if after = after || a.Damaged; !after {
			return nil
		}
		if all = append(all, a); !a.Damaged {
			next = c.Counters
		}
		return nil
	})
	return all, next, err
}

// tell notes what a row says of jobs. One that had been submitted before has no ID in it, but that of its lease or of an event.
func (a *Aside) tell(c *jobs.Changes) {
	known := map[string]bool{}
	for i := range c.Jobs {
		if j := &c.Jobs[i]; j.What&jobs.New != 0 {
			a.Submitted, known[j.ID] = append(a.Submitted, j.ID), true
		}
	}
	for i := range c.Events {
		e := &c.Events[i]
		switch {
		case e.JobID == "" || known[e.JobID]:
			continue
		case e.Type == jobs.EventSubmit:
			a.Submitted = append(a.Submitted, e.JobID)
		default:
			a.Changed = append(a.Changed, e.JobID)
		}
		known[e.JobID] = true
	}
	for i := range c.Attempts {
		a.Ended = append(a.Ended, c.Attempts[i].JobID)
	}
}

// forget takes rows out of the journals, and has everything that is counted go on further up.
func forget(ctx context.Context, q querier, all []Aside, next jobs.Counters) error {
	ofJobs := false
	for _, a := range all {
		ofJobs = ofJobs || a.Table == "job_journal"
		if err := q.exec(ctx, "DELETE FROM "+a.Table+" WHERE id = ?", a.Row); err != nil {
			return err
		}
	}
	if err := q.exec(ctx, "UPDATE state SET backup = 1"); err != nil { // what was done since is not known, as in one
		return err
	}
	if !ofJobs {
		return nil
	}
	// What is left of the journal is written to the tables first: it has the counters that it had.
	s := &fileJobs{}
	if err := s.replayRows(ctx, q); err != nil {
		return err
	}
	return q.exec(ctx, `UPDATE job_state SET job_seq = max(job_seq, ?) + ?, job_revision = max(job_revision, ?) + ?,
		job_event = max(job_event, ?) + ?, job_clock = max(job_clock, ?)`,
		next.Seq, asideGap, next.Revision, asideGap, next.Event, asideGap, next.Clock)
}

// writeAside writes what is set aside to a new file, to the disk. When it fails there is none.
func writeAside(fsys vfs.FS, file string, all []Aside) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	e := json.NewEncoder(w)
	for i := range all {
		err = cmp.Or(err, e.Encode(&all[i]))
	}
	if err = errors.Join(err, w.Flush(), f.Sync(), f.Close()); err == nil {
		err = atomicfile.Named(fsys, file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}
