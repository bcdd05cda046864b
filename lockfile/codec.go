package lockfile

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/lokt-dev/lokt/internal/jsonline"
)

// marshal encodes the record as encoding/json does.
func (r *Record) marshal() ([]byte, error) {
	o := jsonline.Object{B: make([]byte, 0, 1024), HTML: true}
	r.write(&o)
	if !o.OK() {
		return json.Marshal(r) // whose error says what is wrong
	}
	return o.B, nil
}

func (r *Record) write(o *jsonline.Object) {
	o.Open()
	o.Int("version", int64(r.Version))
	o.String("name", r.Name)
	o.OptString("lock_id", r.LockID)
	o.String("owner", r.Owner)
	o.String("host", r.Host)
	o.Int("pid", int64(r.PID))
	o.OptInt("pid_start_ns", r.PIDStart)
	o.OptString("agent_id", r.AgentID)
	o.Time("acquired_ts", r.AcquiredTS)
	o.OptInt("ttl_sec", r.TTLSec)
	o.OptTime("expires_at", r.ExpiresAt)
	o.OptString("kind", r.Kind)
	o.OptTime("held_since", r.HeldSince)
	o.OptInt("renewals", int64(r.Renewals))
	o.OptUint("token", r.Token)
	o.OptInt("limit", int64(r.Limit))
	o.OptInt("ttl_ns", int64(r.TTL))
	o.OptInt("max_hold_ns", int64(r.MaxHold))
	o.OptInt("priority", int64(r.Priority))
	o.OptBool("any_session", r.AnySession)
	o.OptBool("attended", r.Attended)
	o.OptBool("pid_bound", r.Bound)
	o.OptString("boot_id", r.BootID)
	o.OptString("pid_ns", r.PIDNS)
	o.OptString("liveness", r.Liveness)
	o.OptInt("child_pid", int64(r.ChildPID))
	o.OptInt("child_start", r.ChildStart)
	r.Asker.write(o)
	o.OptTime("pending_until", r.Pending)
	if y := r.Yield; y != nil {
		o.Key("yield")
		o.Open()
		o.String("to", y.To)
		o.OptString("host", y.Host)
		o.OptString("agent_id", y.AgentID)
		o.OptBool("any_session", y.AnySession)
		y.Asker.write(o)
		o.Time("asked_at", y.AskedAt)
		o.Int("grace_ns", int64(y.Grace))
		o.OptTime("deadline", y.Deadline)
		o.Close()
	}
	o.OptStrings("within", r.Within)
	o.OptInt("wait_ns", int64(r.Wait))
	o.OptInt("preempt_ns", int64(r.Preempt))
	o.OptBool("refresh", r.Refresh)
	o.OptString("reason", r.Reason)
	o.OptMap("metadata", r.Metadata)
	if c := r.Clock; c != nil {
		o.Key("clock")
		o.Open()
		o.String("boot_id", c.BootID)
		o.OptString("time_ns", c.TimeNS)
		o.Int("monotonic_ns", int64(c.Monotonic))
		o.Time("acquired_ts", c.AcquiredTS)
		o.OptTime("expires_at", c.ExpiresAt)
		o.Close()
	}
	if len(r.Holders) > 0 {
		o.Key("holders")
		o.B = append(o.B, '[')
		for i, h := range r.Holders {
			if i > 0 {
				o.B = append(o.B, ',')
			}
			h.write(o)
		}
		o.B = append(o.B, ']')
	}
	if len(r.extra) > 0 {
		for _, k := range slices.Sorted(maps.Keys(r.extra)) {
			o.Raw(k, r.extra[k])
		}
	}
	o.Close()
}

func (a *Asker) write(o *jsonline.Object) {
	if a == nil {
		return
	}
	o.Key("asker")
	o.Open()
	o.Int("pid", int64(a.PID))
	o.OptInt("start", a.Start)
	o.OptString("boot_id", a.BootID)
	o.OptString("pid_ns", a.PIDNS)
	o.OptString("liveness", a.Liveness)
	o.OptInt("child_pid", int64(a.ChildPID))
	o.OptInt("child_start", a.ChildStart)
	o.Close()
}

// unmarshal decodes a record as encoding/json does. It is plain if it has nothing but keys of this version.
func unmarshal(data []byte) (r *Record, plain bool, err error) {
	in := jsonline.Reader{B: data}
	r = &Record{}
	r.read(&in)
	if in.End(); !in.Bad {
		return r, true, nil
	}
	r = &Record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, false, err
	}
	return r, false, nil
}

func (r *Record) read(in *jsonline.Reader) {
	in.Object(func(key string) {
		switch key {
		case "version":
			r.Version = int(in.Int())
		case "name":
			r.Name = in.String()
		case "lock_id":
			r.LockID = in.String()
		case "owner":
			r.Owner = in.String()
		case "host":
			r.Host = in.String()
		case "pid":
			r.PID = int(in.Int())
		case "pid_start_ns":
			r.PIDStart = in.Int()
		case "agent_id":
			r.AgentID = in.String()
		case "acquired_ts":
			r.AcquiredTS = in.Time()
		case "ttl_sec":
			r.TTLSec = in.Int()
		case "expires_at":
			r.ExpiresAt = in.Time()
		case "kind":
			r.Kind = in.String()
		case "held_since":
			r.HeldSince = in.Time()
		case "renewals":
			r.Renewals = int(in.Int())
		case "token":
			r.Token = in.Uint()
		default:
			r.readRare(key, in)
		}
	})
}

// readRare reads the members that most records lack. One that is unknown is for encoding/json to judge.
func (r *Record) readRare(key string, in *jsonline.Reader) {
	switch key {
	case "limit":
		r.Limit = int(in.Int())
	case "ttl_ns":
		r.TTL = time.Duration(in.Int())
	case "max_hold_ns":
		r.MaxHold = time.Duration(in.Int())
	case "priority":
		r.Priority = int(in.Int())
	case "any_session":
		r.AnySession = in.Bool()
	case "attended":
		r.Attended = in.Bool()
	case "pid_bound":
		r.Bound = in.Bool()
	case "boot_id":
		r.BootID = in.String()
	case "pid_ns":
		r.PIDNS = in.String()
	case "liveness":
		r.Liveness = in.String()
	case "child_pid":
		r.ChildPID = int(in.Int())
	case "child_start":
		r.ChildStart = in.Int()
	case "asker":
		r.Asker = readAsker(in)
	case "pending_until":
		r.Pending = in.Time()
	case "yield":
		r.Yield = readYield(in)
	case "within":
		r.Within = in.Strings()
	case "wait_ns":
		r.Wait = time.Duration(in.Int())
	case "preempt_ns":
		r.Preempt = time.Duration(in.Int())
	case "refresh":
		r.Refresh = in.Bool()
	case "reason":
		r.Reason = in.String()
	case "metadata":
		r.Metadata = in.Map()
	case "clock":
		r.Clock = readClock(in)
	case "holders":
		r.Holders = []*Record{}
		in.List(func() {
			h := &Record{}
			h.read(in)
			r.Holders = append(r.Holders, h)
		})
	default:
		in.Bad = true
	}
}

func readAsker(in *jsonline.Reader) *Asker {
	a := &Asker{}
	in.Object(func(key string) {
		switch key {
		case "pid":
			a.PID = int(in.Int())
		case "start":
			a.Start = in.Int()
		case "boot_id":
			a.BootID = in.String()
		case "pid_ns":
			a.PIDNS = in.String()
		case "liveness":
			a.Liveness = in.String()
		case "child_pid":
			a.ChildPID = int(in.Int())
		case "child_start":
			a.ChildStart = in.Int()
		default:
			in.Bad = true
		}
	})
	return a
}

func readYield(in *jsonline.Reader) *Yield {
	y := &Yield{}
	in.Object(func(key string) {
		switch key {
		case "to":
			y.To = in.String()
		case "host":
			y.Host = in.String()
		case "agent_id":
			y.AgentID = in.String()
		case "any_session":
			y.AnySession = in.Bool()
		case "asker":
			y.Asker = readAsker(in)
		case "asked_at":
			y.AskedAt = in.Time()
		case "grace_ns":
			y.Grace = time.Duration(in.Int())
		case "deadline":
			y.Deadline = in.Time()
		default:
			in.Bad = true
		}
	})
	return y
}

func readClock(in *jsonline.Reader) *Clock {
	c := &Clock{}
	in.Object(func(key string) {
		switch key {
		case "boot_id":
			c.BootID = in.String()
		case "time_ns":
			c.TimeNS = in.String()
		case "monotonic_ns":
			c.Monotonic = time.Duration(in.Int())
		case "acquired_ts":
			c.AcquiredTS = in.Time()
		case "expires_at":
			c.ExpiresAt = in.Time()
		default:
			in.Bad = true
		}
	})
	return c
}

// marshal encodes the queue as encoding/json does.
func (q *Queue) marshal() ([]byte, error) {
	o := jsonline.Object{B: make([]byte, 0, 128+1024*len(q.Waiters)), HTML: true}
	o.Open()
	o.Int("version", int64(q.Version))
	o.String("name", q.Name)
	o.Key("waiters")
	o.B = append(o.B, '[')
	for i, w := range q.Waiters {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		w.write(&o)
	}
	o.B = append(o.B, ']')
	o.Close()
	if !o.OK() {
		return json.Marshal(q) // whose error says what is wrong
	}
	return o.B, nil
}

// unmarshalQueue decodes a queue as encoding/json does.
func unmarshalQueue(data []byte) (*Queue, error) {
	in := jsonline.Reader{B: data}
	q := &Queue{}
	in.Object(func(key string) {
		switch key {
		case "version":
			q.Version = int(in.Int())
		case "name":
			q.Name = in.String()
		case "waiters":
			q.Waiters = []*Record{}
			in.List(func() {
				w := &Record{}
				w.read(&in)
				q.Waiters = append(q.Waiters, w)
			})
		default:
			in.Bad = true
		}
	})
	if in.End(); !in.Bad {
		return q, nil
	}
	q = &Queue{}
	if err := json.Unmarshal(data, q); err != nil {
		return nil, err
	}
	return q, nil
}
