package sqlstore

// Writing the tables for jobs in steps, so that no turn waits for long, and so that what else there is to do, the next turn's requests, goes on
// meanwhile. Each step is a transaction that need not be flushed: the journal has all of it until the last step takes it from there. Who
// reads in between finds some of it in both places, and who opens the database after a crash writes all of it once more.

import (
	"context"
	"errors"
	"iter"

	"github.com/lokt-dev/lokt/jobs"
)

// stepSize is how many statements a step runs: what takes a few milliseconds. Each step costs as much as some dozens of them.
const stepSize = 512

// folding is what is being written.
type folding struct {
	turns int   // so many of what is pending
	last  int64 // number of the last of them
	sum   *jobs.Changes
	next  func() (error, bool) // writes one step, and returns false when no rows are left
	stop  func()
	done  bool // by the transaction that is open
}

// errStopped ends the writing of what is not to be written any more.
var errStopped = errors.New("no longer wanted")

// startFolding begins to write what is pending.
func (s *fileJobs) startFolding(ctx context.Context, q querier) *folding {
	pending := s.unfolded()
	f := &folding{turns: len(pending), last: pending[len(pending)-1].id, sum: merge(changesOf(pending))}
	f.next, f.stop = iter.Pull(func(yield func(error) bool) {
		if err := writeChanges(ctx, &paced{querier: q, size: s.stepSize, left: s.stepSize, pause: func() bool { return yield(nil) }}, f.sum, 0); err != nil {
			yield(err)
		}
	})
	return f
}

// step writes the next step of what is pending, within a transaction. The last one takes it from the journal.
func (s *fileJobs) step(ctx context.Context, q querier) error {
	if s.folding == nil {
		s.folding = s.startFolding(ctx, q)
	}
	f := s.folding
	if err, more := f.next(); err != nil || more {
		return err
	}
	f.done = true
	if err := s.finishRows(ctx, q, f.sum); err != nil {
		return err
	}
	return q.exec(ctx, "DELETE FROM job_journal WHERE id <= ?", f.last)
}

// abandon forgets what was written in steps. It is written once more.
func (s *fileJobs) abandon() {
	if s.folding != nil {
		s.folding.stop()
		s.folding = nil
	}
}

// paced is a connection that pauses after so many statements.
type paced struct {
	querier
	size  int
	left  int
	pause func() bool
}

func (p *paced) pace() error {
	if p.left == 0 {
		if !p.pause() {
			return errStopped
		}
		p.left = p.size
	}
	p.left--
	return nil
}

// exec implements querier.
func (p *paced) exec(ctx context.Context, statement string, args ...any) error {
	if err := p.pace(); err != nil {
		return err
	}
	return p.querier.exec(ctx, statement, args...)
}

// change implements querier.
func (p *paced) change(ctx context.Context, statement string, args ...any) (int64, error) {
	if err := p.pace(); err != nil {
		return 0, err
	}
	return p.querier.change(ctx, statement, args...)
}
