package sqlstore

import (
	"slices"
	"time"
)

// Lag is how far the tables for jobs are behind the turns of the scheduler that were stored. What they lack is in the journal, or in
// job_changes, and counts as stored.
type Lag struct {
	Turns int           // that are not in the tables; in PostgreSQL those of all servers
	Bytes int           // of the turns that are not, as far as this process knows them
	Age   time.Duration // for how long this process has known of the oldest of them
}

// lag implements backend.
func (d *fileDB) lag() Lag { return d.jobs.lag() }

func (s *fileJobs) lag() (l Lag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Turns, l.Bytes = len(s.pending), s.packed; l.Turns > 0 {
		l.Age = time.Since(s.pending[0].at)
	}
	return l
}

// lag implements backend. It is what the last turn has seen, or the look at what others did every two seconds.
func (d *serverDB) lag() Lag { return d.jobs.tables.lag() }

// pgMark says when it was learned that there is a turn, of whichever server.
type pgMark struct {
	seq int64
	at  time.Time
}

// learned is told the number of the newest turn.
func (t *pgTables) learned(newest int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unmark()
	if newest > t.upTo && newest > t.newest {
		t.marks = append(t.marks, pgMark{newest, time.Now()})
	}
	t.newest = newest
}

// unmark forgets marks of what is in the tables by now.
func (t *pgTables) unmark() {
	n := 0
	for n < len(t.marks) && t.marks[n].seq <= t.upTo {
		n++
	}
	t.marks = slices.Delete(t.marks, 0, n)
}

func (t *pgTables) lag() (l Lag) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unmark()
	if l.Turns, l.Bytes = int(max(t.newest-t.upTo, 0)), t.bytes; len(t.marks) > 0 {
		l.Age = time.Since(t.marks[0].at)
	}
	return l
}
