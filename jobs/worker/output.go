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
// ID, if p has all of it: the service, which blots it out too, may be sent it in two parts. There is no error.
func (r *Run) Write(p []byte) (int, error) {
	id := []byte(r.Lease.ID)
	shown := bytes.ReplaceAll(p, id, bytes.Repeat([]byte{'*'}, len(id)))
	r.tell(func(*jobs.Progress) {
		r.output.text = append(r.output.text, shown...)
		if n := len(r.output.text); n > 2*jobs.KeptOutput {
			r.output.drop(int64(n - jobs.KeptOutput))
		}
	})
	return len(p), nil
}

func (o *output) drop(n int64) { o.text, o.offset = o.text[n:], o.offset+n }

// next puts what is to be sent next into a report: whole characters, and a question mark for each byte that is none.
func (o *output) next(p *jobs.Progress) {
	n := min(len(o.text), jobs.MaxTextLen)
	for i := max(n-utf8.UTFMax, 0); i < n; i++ {
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
