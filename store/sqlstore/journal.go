package sqlstore

// What a turn of the scheduler changed, as bytes: what the journal of SQLite, or the table job_changes of PostgreSQL, has of it. One
// description serves for both directions.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt/jobs"
)

// journalVersion begins every entry of the journal. A program reads what those before it wrote: in version 1 leases have no
// tokens of locks.
const journalVersion = 2

// journalWhole begins an entry in which jobs have with them everything, for those who do not have the entries before it, and in which nothing is
// written twice: texts that were in it before are referred to, times are told by how far they are from the one before. In version 3 they were
// written out.
const (
	journalWhole      = 4
	journalWrittenOut = 3
)

// summed is set in the version of an entry that ends with a checksum. Those of programs that wrote none are read as well. An entry that has
// lost just this bit is not taken for one of theirs, because it has bytes too many.
const summed = 0x80

// errJournal is the error of an entry that is not what was written.
var errJournal = errors.New("an entry of the journal cannot be read")

var (
	errSum     = fmt.Errorf("%w: its checksum is not that of its content, so something has changed it since it was written", errJournal)
	errVersion = fmt.Errorf("%w: it is damaged, or a newer program wrote it", errJournal)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal ends an entry with its checksum, which is about its version, too. The entry begins at the given place.
func seal(b []byte, from int) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

// sumOf returns the checksum of a sealed entry.
func sumOf(b []byte) int64 { return int64(binary.LittleEndian.Uint32(b[len(b)-crc32.Size:])) }

// unseal returns an entry's version, of which the given one is the newest, and its content. Whatever was changed since it was sealed is
// noticed; without that, some of what was changed would be read as something else.
func unseal(b []byte, newest byte) (version byte, content []byte, err error) {
	if len(b) == 0 {
		return 0, nil, errJournal
	}
	if b[0]&summed != 0 {
		end := len(b) - crc32.Size
		if end < 1 || binary.LittleEndian.Uint32(b[end:]) != crc32.Checksum(b[:end], castagnoli) {
			return 0, nil, errSum
		}
		b = b[:end:end]
	}
	if version = b[0] &^ summed; version == 0 || version > newest {
		return 0, nil, errVersion
	}
	return version, b[1:], nil
}

// packChanges appends a turn's changes, but for its time. Jobs have with them only what changed; those with numbers above
// the given one, which is the highest before the turn, are new.
func packChanges(b []byte, c *jobs.Changes, known uint64) []byte {
	p := &packer{b: append(b, journalVersion|summed)}
	p.changes(c, known)
	return seal(p.b, len(b))
}

// packWhole does so with everything about each job. The places of texts, which are none at first, are used again.
func packWhole(b []byte, c *jobs.Changes, places map[string]int) []byte {
	clear(places)
	p := &packer{b: append(b, journalWhole|summed), whole: true, brief: true, places: places}
	p.changes(c, 0)
	return seal(p.b, len(b))
}

// unpackChanges reads what packChanges and packWhole wrote. The parts of a job that are not in it are zero.
func unpackChanges(b []byte) (*jobs.Changes, error) {
	version, content, err := unseal(b, journalWhole)
	if err != nil {
		return nil, err
	}
	p := &packer{b: content, reads: true, first: version == 1, whole: version >= journalWrittenOut, brief: version == journalWhole}
	c := &jobs.Changes{}
	if p.changes(c, 0); p.failed || len(p.b) != 0 {
		return nil, errJournal
	}
	return c, nil
}

// packer appends values to bytes, or takes them off their beginning. What cannot be read is zero.
type packer struct {
	b      []byte
	reads  bool
	first  bool // it reads version 1
	whole  bool // everything about a job is there
	failed bool

	brief  bool           // texts are referred to, and times are told by how far they are from the last one
	places map[string]int // of texts that were written
	texts  []string       // that were read
	last   int64          // the last time
}

func (p *packer) number(n *int64) {
	if !p.reads {
		p.b = binary.AppendVarint(p.b, *n)
		return
	}
	v, size := binary.Varint(p.b)
	if size <= 0 {
		p.fail()
		return
	}
	*n, p.b = v, p.b[size:]
}

func (p *packer) fail() { p.failed, p.b = true, nil }

func (p *packer) bytes(what *[]byte) {
	n := int64(len(*what))
	if p.number(&n); !p.reads {
		p.b = append(p.b, *what...)
		return
	}
	if n < 0 || n > int64(len(p.b)) {
		p.fail()
		return
	}
	*what, p.b = p.b[:n:n], p.b[n:]
}

// integer is what a number of 64 bits can hold.
type integer interface {
	~int | ~int64 | ~uint8 | ~uint64
}

func packNumber[N integer](p *packer, n *N) {
	v := int64(*n)
	if p.number(&v); p.reads { // what is packed may be read by others meanwhile
		*n = N(v)
	}
}

func packText[S ~string](p *packer, s *S) {
	if p.brief {
		text := string(*s)
		if p.text(&text); p.reads {
			*s = S(text)
		}
		return
	}
	if !p.reads {
		p.b = append(binary.AppendVarint(p.b, int64(len(*s))), *s...)
		return
	}
	var b []byte
	p.bytes(&b)
	*s = S(b)
}

// text packs a text as its length and itself, or, if it was there before, as minus the number of those that were there before it and one more.
func (p *packer) text(s *string) {
	if !p.reads {
		if at, ok := p.places[*s]; ok {
			p.b = binary.AppendVarint(p.b, int64(-1-at))
			return
		}
		p.b = append(binary.AppendVarint(p.b, int64(len(*s))), *s...)
		if *s != "" {
			p.places[*s] = len(p.places)
		}
		return
	}
	n := int64(0)
	switch p.number(&n); {
	case n < 0 && -1-n < int64(len(p.texts)):
		*s = p.texts[-1-n]
	case n < 0 || n > int64(len(p.b)):
		p.fail()
	case n == 0:
		*s = ""
	default:
		*s = string(p.b[:n])
		p.b, p.texts = p.b[n:], append(p.texts, *s)
	}
}

func packList[T any](p *packer, all *[]T, each func(*packer, *T)) {
	n := len(*all)
	if packNumber(p, &n); p.reads {
		if n < 0 || n > len(p.b) {
			p.fail()
		}
		if n == 0 || p.failed {
			return
		}
		*all = make([]T, n)
	}
	for i := range *all {
		each(p, &(*all)[i])
	}
}

func (p *packer) yes(y *bool) {
	n := flag(*y)
	if p.number(&n); p.reads {
		*y = n != 0
	}
}

// time keeps milliseconds, as the tables do.
func (p *packer) time(t *time.Time) {
	if p.brief {
		p.step(t)
		return
	}
	n := int64(0)
	if !p.reads && !t.IsZero() {
		n = t.UnixMilli()
	}
	if p.number(&n); p.reads && n != 0 {
		*t = time.UnixMilli(n).UTC()
	}
}

// step keeps how many milliseconds a time is after the last one, and one more if that is not less than none, so that none says that there
// is no time.
func (p *packer) step(t *time.Time) {
	n := int64(0)
	if !p.reads && !t.IsZero() {
		at := t.UnixMilli()
		if n = at - p.last; n >= 0 {
			n++
		}
		p.last = at
	}
	if p.number(&n); !p.reads || n == 0 {
		return
	}
	if n > 0 {
		n--
	}
	p.last += n
	*t = time.UnixMilli(p.last).UTC()
}

func (p *packer) json(m *jsontext.Value) {
	there := *m != nil
	if p.yes(&there); !there {
		return
	}
	b := []byte(*m)
	if p.bytes(&b); p.reads {
		*m = slices.Clone(b)
		if *m == nil {
			*m = jsontext.Value{}
		}
	}
}

func (p *packer) changes(c *jobs.Changes, known uint64) {
	packList(p, &c.Jobs, (*packer).job)
	packList(p, &c.Ended, func(p *packer, j *jobs.Job) {
		p.state(j)
		p.time(&j.EndedAt)
		fresh := p.whole || j.Seq > known
		if p.yes(&fresh); fresh {
			p.spec(j)
		}
		p.output(&j.Output)
	})
	packList(p, &c.Leases, (*packer).lease)
	packList(p, &c.Unleased, packText)
	packList(p, &c.Attempts, (*packer).attempt)
	packList(p, &c.Keys, func(p *packer, k *jobs.Key) {
		packText(p, &k.Key)
		print := k.Print[:]
		if p.bytes(&print); p.reads && copy(k.Print[:], print) != len(k.Print) {
			p.fail()
		}
		packText(p, &k.JobID)
		packText(p, &k.State)
		p.time(&k.Expires)
	})
	packList(p, &c.Dropped, packText)
	packList(p, &c.Answered, func(p *packer, a *jobs.Answered) {
		packText(p, &a.WorkerID)
		packText(p, &a.RequestID)
		p.lease(&a.Lease)
		p.time(&a.Expires)
	})
	packList(p, &c.Forgot, func(p *packer, a *jobs.Answered) {
		packText(p, &a.WorkerID)
		packText(p, &a.RequestID)
	})
	packList(p, &c.Events, (*packer).event)
	packList(p, &c.Tallies, (*packer).tally)
	packList(p, &c.Counts, func(p *packer, n *jobs.Count) {
		p.time(&n.Hour)
		packText(p, &n.Event)
		packText(p, &n.Tag)
		packNumber(p, &n.N)
	})
	p.yes(&c.Refrozen)
	packList(p, &c.Frozen, packText)
	packNumber(p, &c.Counters.Seq)
	packNumber(p, &c.Counters.Revision)
	packNumber(p, &c.Counters.Event)
	packNumber(p, &c.Counters.Clock)
}

func (p *packer) job(c *jobs.JobChange) {
	packNumber(p, &c.What)
	p.state(&c.Job)
	if p.whole || c.What&jobs.New != 0 {
		p.spec(&c.Job)
	}
	if p.whole || c.What&(jobs.New|jobs.Reported) != 0 {
		p.output(&c.Output)
	}
}

// state packs what changes about a job.
func (p *packer) state(j *jobs.Job) {
	packNumber(p, &j.Seq)
	packText(p, &j.State)
	packText(p, &j.LeaseID)
	p.time(&j.UpdatedAt)
	p.time(&j.ReadyAt)
	p.time(&j.StartedAt)
	packNumber(p, &j.Attempt)
	packNumber(p, &j.Token)
	packText(p, &j.Code)
	p.yes(&j.Cancel)
	packText(p, &j.Reason)
	packNumber(p, &j.Ord)
	packNumber(p, &j.Revision)
}

// spec packs what never changes about a job.
func (p *packer) spec(j *jobs.Job) {
	packText(p, &j.ID)
	packText(p, &j.Type)
	packText(p, &j.Priority)
	packNumber(p, &j.Units)
	p.yes(&j.Unique)
	p.json(&j.Payload)
	packText(p, &j.IdempotencyKey)
	packList(p, &j.Tags, packText)
	packNumber(p, &j.MaxRuntime)
	packNumber(p, &j.MaxAttempts)
	packNumber(p, &j.RetryBackoff)
	p.time(&j.RunAt)
	packList(p, &j.Locks, packText)
	p.time(&j.CreatedAt)
}

func (p *packer) output(o *jobs.Output) {
	there := *o != nil
	if p.yes(&there); !there {
		return
	}
	if p.reads {
		*o = &jobs.Report{}
	}
	r := *o
	measured := r.Progress != nil
	if p.yes(&measured); measured {
		if p.reads {
			r.Progress = new(float64)
		}
		bits := math.Float64bits(*r.Progress)
		if packNumber(p, &bits); p.reads {
			*r.Progress = math.Float64frombits(bits)
		}
	}
	packText(p, &r.Message)
	p.json(&r.Metrics)
	p.json(&r.Checkpoint)
	p.json(&r.Result)
	p.json(&r.Error)
}

func (p *packer) lease(l *jobs.Lease) {
	packText(p, &l.ID)
	packText(p, &l.JobID)
	packText(p, &l.WorkerID)
	packText(p, &l.RequestID)
	packNumber(p, &l.Units)
	packNumber(p, &l.Token)
	packNumber(p, &l.Attempt)
	p.time(&l.IssuedAt)
	p.time(&l.ExpiresAt)
	p.time(&l.LastHeartbeat)
	p.time(&l.FirstHeartbeat)
	p.time(&l.RunUntil)
	packNumber(p, &l.TTL)
	packNumber(p, &l.Interval)
	if !p.first {
		packMap(p, &l.LockTokens, packNumber)
	}
}

// keyed is what a map has under a key.
type keyed[V any] struct {
	key   string
	value V
}

// packMap packs a map; one that is empty is none.
func packMap[V any](p *packer, m *map[string]V, value func(*packer, *V)) {
	var all []keyed[V]
	for k, v := range *m {
		all = append(all, keyed[V]{k, v})
	}
	packList(p, &all, func(p *packer, a *keyed[V]) {
		packText(p, &a.key)
		value(p, &a.value)
	})
	if p.reads && len(all) > 0 {
		*m = make(map[string]V, len(all))
		for _, a := range all {
			(*m)[a.key] = a.value
		}
	}
}

func (p *packer) attempt(a *jobs.Attempt) {
	packText(p, &a.JobID)
	packNumber(p, &a.Number)
	packNumber(p, &a.Token)
	packText(p, &a.LeaseID)
	packText(p, &a.WorkerID)
	packNumber(p, &a.Units)
	packText(p, &a.State)
	packText(p, &a.Code)
	p.time(&a.IssuedAt)
	p.time(&a.FirstBeat)
	p.time(&a.EndedAt)
	p.json(&a.Error)
}

func (p *packer) event(e *jobs.Event) {
	packNumber(p, &e.Seq)
	p.time(&e.Time)
	packText(p, &e.Type)
	packText(p, &e.JobID)
	packText(p, &e.LeaseID)
	packText(p, &e.WorkerID)
	packNumber(p, &e.Attempt)
	packNumber(p, &e.Token)
	packText(p, &e.Code)
	packText(p, &e.Reason)
}

// bucket is one of a histogram's.
type bucket struct{ at, n int64 }

func (p *packer) tally(t *jobs.Tally) {
	p.time(&t.Hour)
	packText(p, &t.Type)
	for _, n := range []*int64{&t.Completed, &t.Failed, &t.Expired, &t.Cancelled, &t.Waits} {
		p.number(n)
	}
	packNumber(p, &t.WaitSum)
	packNumber(p, &t.Runs.Min)
	packNumber(p, &t.Runs.Max)
	var buckets []bucket
	for at, n := range t.Runs.Buckets {
		buckets = append(buckets, bucket{int64(at), n})
	}
	packList(p, &buckets, func(p *packer, b *bucket) {
		p.number(&b.at)
		p.number(&b.n)
	})
	if p.reads && len(buckets) > 0 {
		t.Runs.Buckets = make(map[int]int64, len(buckets))
		for _, b := range buckets {
			t.Runs.Buckets[int(b.at)] = b.n
		}
	}
}
