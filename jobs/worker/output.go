package worker

// What a run tells the service while it lasts: its news, and what it prints.

import (
	"bytes"
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// output is what a job has printed and the service does not have yet.
type output struct {
	text   []byte
	offset int64 // of the text, as a jobs.Piece has it
}

// Write implements io.Writer: it tells what the job prints, about once a second, and keeps nobody waiting. Of what comes
// faster than it can be sent, the last jobs.KeptOutput bytes are, which is what the service keeps. Asterisks stand for the lease
// ID, in however many parts it is written: the service, which blots it out too, may be sent it in several. There is no error.
func (r *Run) Write(p []byte) (int, error) {
	r.tell(func(*jobs.Progress) {
		o, id := &r.output, []byte(r.Lease.ID)
		from := max(len(o.text)-len(id)+1, 0)
		o.text = append(o.text, p...)
		copy(o.text[from:], bytes.ReplaceAll(o.text[from:], id, bytes.Repeat([]byte{'*'}, len(id))))
		if n := len(o.text); n > 2*jobs.KeptOutput {
			o.drop(int64(n - jobs.KeptOutput))
		}
	})
	return len(p), nil
}

func (o *output) drop(n int64) { o.text, o.offset = o.text[n:], o.offset+n }

// next puts what is to be sent next into a report: whole characters, and a question mark for each byte that is none. If more may
// come, what may be the beginning of the lease ID waits for it.
func (o *output) next(p *jobs.Progress, leaseID string, more bool) {
	n := min(len(o.text), jobs.MaxTextLen)
	for k := 1; more && k < len(leaseID); k++ {
		if bytes.HasSuffix(o.text, []byte(leaseID[:k])) {
			n = min(n, len(o.text)-k)
		}
	}
	for i := max(n-utf8.UTFMax, 0); i < n && (more || n < len(o.text)); i++ {
		if utf8.RuneStart(o.text[i]) && !utf8.FullRune(o.text[i:n]) {
			n = i // the rest of it comes later
		}
	}
	for i := 0; i < n; {
		c, size := utf8.DecodeRune(o.text[i:n])
		if c == 0 || c == utf8.RuneError && size == 1 {
			o.text[i] = '?'
		}
		i += size
	}
	p.Text, p.Offset = string(o.text[:n]), o.offset
}

// tellEvery is the least time between two reports.
const tellEvery = time.Second

// tell notes news, to be sent.
func (r *Run) tell(note func(*jobs.Progress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	note(&r.news)
	r.wake()
}

// wake has news sent.
func (r *Run) wake() {
	select {
	case r.fresh <- struct{}{}:
	default:
	}
}

// reportTimeout is for the answer to a report: the end of a job waits for its last one.
const reportTimeout = 2 * time.Second

// report sends news, until the handler has returned and the last were sent, or could not be for a quarter of the lease's life.
func (r *Run) report(prints context.Context) {
	defer close(r.told)
	for prints.Err() == nil {
		select {
		case <-r.fresh:
			_ = r.sendReport(true) // what was not sent is sent later, with what is newer
		case <-prints.Done():
		}
		r.w.rest(prints, tellEvery, nil)
	}
	if r.mu.Lock(); len(r.output.text) > 0 {
		r.wake()
	}
	r.mu.Unlock()
	for end := r.w.o.Elapsed() + r.life()/4; len(r.fresh) > 0; {
		<-r.fresh
		if err := r.sendReport(false); err != nil {
			if r.w.rest(r.w.hard, firstRetry, nil); r.w.hard.Err() != nil || r.w.o.Elapsed() > end {
				return
			}
		}
	}
}

// sendReport sends what is newest, and what more was printed, or all if there will be no more. An error may pass.
func (r *Run) sendReport(more bool) error {
	if r.gone.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
	defer cancel()
	r.mu.Lock()
	p := r.news
	r.output.next(&p, r.Lease.ID, more)
	r.mu.Unlock()
	p.LeaseID, p.WorkerID = r.Lease.ID, r.w.o.ID
	err := r.w.leaser.Report(ctx, p)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil && r.w.passing(err):
		r.wake()
		return err
	case errors.Is(err, lokt.ErrInvalid) && p.Metrics != nil: // which alone can be what is refused
		r.news.Metrics = nil
		r.wake()
		return nil
	}
	r.output.drop(max(p.Offset+int64(len(p.Text))-r.output.offset, 0)) // some of it may have been dropped meanwhile
	if r.output.next(&p, r.Lease.ID, more); p.Text != "" {
		r.wake()
	}
	return nil
}
