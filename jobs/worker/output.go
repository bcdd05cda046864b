package worker

import (
	"bytes"
	"unicode/utf8"

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
