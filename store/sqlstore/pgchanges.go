package sqlstore

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt/internal/jsonline"
	"github.com/lokt-dev/lokt/jobs"
)

// What a turn changed, as other processes are told: JSON by the names of the fields, without those that are zero. JSON that clients sent
// is in it as text: it is to stay exactly as it is. It is written and read without reflection, because every process reads what every
// other one changes.

var errUnwritable = errors.New("a time is outside of the years 0 to 9999")

// encodeChanges writes what others follow: no events and statistics, and of jobs that ended only what they were known by.
func encodeChanges(c *jobs.Changes) (string, error) {
	o := &jsonline.Object{B: make([]byte, 0, 256+512*(len(c.Jobs)+len(c.Leases)))}
	o.Open()
	o.OptTime("Time", c.Time)
	encodeList(o, "Jobs", c.Jobs, func(o *jsonline.Object, j *jobs.JobChange) {
		encodeJob(o, &j.Job)
		o.OptInt("What", int64(j.What))
	})
	encodeList(o, "Leases", c.Leases, encodeLease)
	o.OptStrings("Unleased", c.Unleased)
	ended := make(map[string]bool, len(c.Ended))
	for i := range c.Ended {
		ended[c.Ended[i].ID] = true
	}
	living := make([]jobs.Attempt, 0, len(c.Attempts))
	for _, a := range c.Attempts {
		if !ended[a.JobID] {
			living = append(living, a)
		}
	}
	encodeList(o, "Attempts", living, encodeAttempt)
	encodeList(o, "Ended", c.Ended, func(o *jsonline.Object, j *jobs.Job) {
		encodeJob(o, &jobs.Job{Spec: jobs.Spec{Type: j.Type, Priority: j.Priority}, ID: j.ID, State: j.State})
	})
	encodeList(o, "Keys", c.Keys, encodeKey)
	o.OptStrings("Dropped", c.Dropped)
	encodeList(o, "Answered", c.Answered, encodeAnswered)
	encodeList(o, "Forgot", c.Forgot, encodeAnswered)
	o.OptBool("Refrozen", c.Refrozen)
	o.OptStrings("Frozen", c.Frozen)
	o.Key("Counters")
	o.Open()
	o.OptUint("Seq", c.Counters.Seq)
	o.OptUint("Revision", c.Counters.Revision)
	o.OptUint("Event", c.Counters.Event)
	o.OptInt("Clock", c.Counters.Clock)
	o.Close()
	o.Close()
	if !o.OK() {
		return "", errUnwritable
	}
	return string(o.B), nil
}

// decodeChanges reads what encodeChanges wrote, or what a program of version 1 did.
func decodeChanges(b []byte) (c jobs.Changes, err error) {
	r := &jsonline.Reader{B: b}
	parseChanges(r, &c)
	if r.End(); !r.Bad {
		return c, nil
	}
	c = jobs.Changes{}
	if err := json.Unmarshal(b, &c); err != nil {
		return jobs.Changes{}, err
	}
	for i := range c.Jobs {
		unquoteJob(&c.Jobs[i].Job)
	}
	for i := range c.Ended {
		unquoteJob(&c.Ended[i])
	}
	for i := range c.Attempts {
		c.Attempts[i].Error = unquote(c.Attempts[i].Error)
	}
	return c, nil
}

func encodeList[T any](o *jsonline.Object, key string, all []T, write func(o *jsonline.Object, v *T)) {
	if len(all) == 0 {
		return
	}
	o.Key(key)
	o.B = append(o.B, '[')
	for i := range all {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.Open()
		write(o, &all[i])
		o.Close()
	}
	o.B = append(o.B, ']')
}

func encodeJob(o *jsonline.Object, j *jobs.Job) {
	o.OptString("Type", j.Type)
	o.OptString("Priority", string(j.Priority))
	o.OptInt("Units", int64(j.Units))
	o.OptBool("Unique", j.Unique)
	o.OptString("Payload", string(j.Payload))
	o.OptString("IdempotencyKey", j.IdempotencyKey)
	o.OptStrings("Tags", j.Tags)
	o.OptInt("MaxRuntime", int64(j.MaxRuntime))
	o.OptInt("MaxAttempts", int64(j.MaxAttempts))
	o.OptInt("RetryBackoff", int64(j.RetryBackoff))
	o.OptTime("RunAt", j.RunAt)
	o.OptStrings("Locks", j.Locks)
	o.OptString("ID", j.ID)
	o.OptString("State", string(j.State))
	o.OptString("LeaseID", j.LeaseID)
	o.OptTime("CreatedAt", j.CreatedAt)
	o.OptTime("UpdatedAt", j.UpdatedAt)
	o.OptTime("ReadyAt", j.ReadyAt)
	o.OptTime("StartedAt", j.StartedAt)
	o.OptTime("EndedAt", j.EndedAt)
	o.OptInt("Attempt", int64(j.Attempt))
	o.OptUint("Token", j.Token)
	o.OptString("Code", j.Code)
	o.OptBool("Cancel", j.Cancel)
	o.OptString("Reason", j.Reason)
	if p := j.Output; p != nil {
		o.Key("Output")
		o.Open()
		if p.Progress != nil {
			b, err := json.Marshal(*p.Progress)
			if err != nil { // no number: it is left out
				b = []byte("null")
			}
			o.Raw("Progress", b)
		}
		o.OptString("Message", p.Message)
		o.OptString("Metrics", string(p.Metrics))
		o.OptString("Checkpoint", string(p.Checkpoint))
		o.OptString("Result", string(p.Result))
		o.OptString("Error", string(p.Error))
		o.Close()
	}
	o.OptUint("Seq", j.Seq)
	o.OptInt("Ord", j.Ord)
	o.OptUint("Revision", j.Revision)
}

func encodeLease(o *jsonline.Object, l *jobs.Lease) {
	o.OptString("ID", l.ID)
	o.OptString("JobID", l.JobID)
	o.OptString("WorkerID", l.WorkerID)
	o.OptString("RequestID", l.RequestID)
	o.OptInt("Units", int64(l.Units))
	o.OptUint("Token", l.Token)
	o.OptInt("Attempt", int64(l.Attempt))
	o.OptTime("IssuedAt", l.IssuedAt)
	o.OptTime("ExpiresAt", l.ExpiresAt)
	o.OptTime("LastHeartbeat", l.LastHeartbeat)
	o.OptTime("FirstBeat", l.FirstBeat)
	o.OptTime("RunUntil", l.RunUntil)
	if len(l.LockTokens) > 0 {
		o.Key("LockTokens")
		o.Open()
		for _, name := range slices.Sorted(maps.Keys(l.LockTokens)) {
			o.OptUint(name, l.LockTokens[name])
		}
		o.Close()
	}
	o.OptInt("TTL", int64(l.TTL))
	o.OptInt("Interval", int64(l.Interval))
}

func encodeAttempt(o *jsonline.Object, a *jobs.Attempt) {
	o.OptString("JobID", a.JobID)
	o.OptInt("Number", int64(a.Number))
	o.OptUint("Token", a.Token)
	o.OptString("LeaseID", a.LeaseID)
	o.OptString("WorkerID", a.WorkerID)
	o.OptInt("Units", int64(a.Units))
	o.OptString("State", string(a.State))
	o.OptString("Code", a.Code)
	o.OptTime("IssuedAt", a.IssuedAt)
	o.OptTime("FirstBeat", a.FirstBeat)
	o.OptTime("EndedAt", a.EndedAt)
	o.OptString("Error", string(a.Error))
}

func encodeKey(o *jsonline.Object, k *jobs.Key) {
	o.OptString("Key", k.Key)
	o.Key("Print")
	for i, b := range k.Print {
		o.B = append(o.B, "[,"[min(i, 1)])
		o.B = strconv.AppendUint(o.B, uint64(b), 10)
	}
	o.B = append(o.B, ']')
	o.OptString("JobID", k.JobID)
	o.OptString("State", string(k.State))
	o.OptTime("Expires", k.Expires)
}

func encodeAnswered(o *jsonline.Object, a *jobs.Answered) {
	o.OptString("WorkerID", a.WorkerID)
	o.OptString("RequestID", a.RequestID)
	o.Key("Lease")
	o.Open()
	encodeLease(o, &a.Lease)
	o.Close()
	o.OptTime("Expires", a.Expires)
}

// parseChanges reads all of it. What is written in another way sets Bad.
func parseChanges(r *jsonline.Reader, c *jobs.Changes) {
	r.Object(func(key string) {
		switch key {
		case "Time":
			c.Time = r.Time()
		case "Jobs":
			c.Jobs = decodeList(r, func(key string, j *jobs.JobChange) {
				if key == "What" {
					j.What = jobs.What(r.Uint())
					return
				}
				decodeJob(r, key, &j.Job)
			})
		case "Leases":
			c.Leases = decodeList(r, func(key string, l *jobs.Lease) { decodeLease(r, key, l) })
		case "Unleased":
			c.Unleased = decodeStrings(r)
		case "Attempts":
			c.Attempts = decodeList(r, func(key string, a *jobs.Attempt) { decodeAttempt(r, key, a) })
		case "Ended":
			c.Ended = decodeList(r, func(key string, j *jobs.Job) { decodeJob(r, key, j) })
		case "Keys":
			c.Keys = decodeList(r, func(key string, k *jobs.Key) { decodeKey(r, key, k) })
		case "Dropped":
			c.Dropped = decodeStrings(r)
		case "Answered":
			c.Answered = decodeList(r, func(key string, a *jobs.Answered) { decodeAnswered(r, key, a) })
		case "Forgot":
			c.Forgot = decodeList(r, func(key string, a *jobs.Answered) { decodeAnswered(r, key, a) })
		case "Refrozen":
			c.Refrozen = r.Bool()
		case "Frozen":
			c.Frozen = decodeStrings(r)
		case "Counters":
			r.Object(func(key string) {
				switch key {
				case "Seq":
					c.Counters.Seq = r.Uint()
				case "Revision":
					c.Counters.Revision = r.Uint()
				case "Event":
					c.Counters.Event = r.Uint()
				case "Clock":
					c.Counters.Clock = r.Int()
				default:
					r.Bad = true
				}
			})
		default:
			r.Bad = true
		}
	})
}

func decodeList[T any](r *jsonline.Reader, member func(key string, v *T)) []T {
	var all []T
	r.List(func() {
		var v T
		r.Object(func(key string) { member(key, &v) })
		all = append(all, v)
	})
	return all
}

func decodeStrings(r *jsonline.Reader) []string {
	var all []string
	r.List(func() { all = append(all, r.Text()) })
	return all
}

// decodeJSON reads JSON that is in a text.
func decodeJSON(r *jsonline.Reader) json.RawMessage {
	if s := r.Text(); s != "" {
		return json.RawMessage(s)
	}
	return nil
}

func decodeJob(r *jsonline.Reader, key string, j *jobs.Job) {
	switch key {
	case "Type":
		j.Type = r.Text()
	case "Priority":
		j.Priority = jobs.Priority(r.Text())
	case "Units":
		j.Units = int(r.Int())
	case "Unique":
		j.Unique = r.Bool()
	case "Payload":
		j.Payload = decodeJSON(r)
	case "IdempotencyKey":
		j.IdempotencyKey = r.Text()
	case "Tags":
		j.Tags = decodeStrings(r)
	case "MaxRuntime":
		j.MaxRuntime = time.Duration(r.Int())
	case "MaxAttempts":
		j.MaxAttempts = int(r.Int())
	case "RetryBackoff":
		j.RetryBackoff = time.Duration(r.Int())
	case "RunAt":
		j.RunAt = r.Time()
	case "Locks":
		j.Locks = decodeStrings(r)
	default:
		decodeState(r, key, j)
	}
}

func decodeState(r *jsonline.Reader, key string, j *jobs.Job) {
	switch key {
	case "ID":
		j.ID = r.Text()
	case "State":
		j.State = jobs.State(r.Text())
	case "LeaseID":
		j.LeaseID = r.Text()
	case "CreatedAt":
		j.CreatedAt = r.Time()
	case "UpdatedAt":
		j.UpdatedAt = r.Time()
	case "ReadyAt":
		j.ReadyAt = r.Time()
	case "StartedAt":
		j.StartedAt = r.Time()
	case "EndedAt":
		j.EndedAt = r.Time()
	case "Attempt":
		j.Attempt = int(r.Int())
	case "Token":
		j.Token = r.Uint()
	case "Code":
		j.Code = r.Text()
	case "Cancel":
		j.Cancel = r.Bool()
	case "Reason":
		j.Reason = r.Text()
	case "Seq":
		j.Seq = r.Uint()
	case "Ord":
		j.Ord = r.Int()
	case "Revision":
		j.Revision = r.Uint()
	case "Output":
		j.Output = &jobs.Report{}
		r.Object(func(key string) { decodeReport(r, key, j.Output) })
	default:
		r.Bad = true
	}
}

func decodeReport(r *jsonline.Reader, key string, p *jobs.Report) {
	switch key {
	case "Message":
		p.Message = r.Text()
	case "Metrics":
		p.Metrics = decodeJSON(r)
	case "Checkpoint":
		p.Checkpoint = decodeJSON(r)
	case "Result":
		p.Result = decodeJSON(r)
	case "Error":
		p.Error = decodeJSON(r)
	default: // "Progress": a fraction is left to encoding/json
		r.Bad = true
	}
}

func decodeLease(r *jsonline.Reader, key string, l *jobs.Lease) {
	switch key {
	case "ID":
		l.ID = r.Text()
	case "JobID":
		l.JobID = r.Text()
	case "WorkerID":
		l.WorkerID = r.Text()
	case "RequestID":
		l.RequestID = r.Text()
	case "Units":
		l.Units = int(r.Int())
	case "Token":
		l.Token = r.Uint()
	case "Attempt":
		l.Attempt = int(r.Int())
	case "IssuedAt":
		l.IssuedAt = r.Time()
	case "ExpiresAt":
		l.ExpiresAt = r.Time()
	case "LastHeartbeat":
		l.LastHeartbeat = r.Time()
	case "FirstBeat":
		l.FirstBeat = r.Time()
	case "RunUntil":
		l.RunUntil = r.Time()
	case "LockTokens":
		l.LockTokens = map[string]uint64{}
		r.Object(func(name string) { l.LockTokens[name] = r.Uint() })
	case "TTL":
		l.TTL = time.Duration(r.Int())
	case "Interval":
		l.Interval = time.Duration(r.Int())
	default:
		r.Bad = true
	}
}

func decodeAttempt(r *jsonline.Reader, key string, a *jobs.Attempt) {
	switch key {
	case "JobID":
		a.JobID = r.Text()
	case "Number":
		a.Number = int(r.Int())
	case "Token":
		a.Token = r.Uint()
	case "LeaseID":
		a.LeaseID = r.Text()
	case "WorkerID":
		a.WorkerID = r.Text()
	case "Units":
		a.Units = int(r.Int())
	case "State":
		a.State = jobs.State(r.Text())
	case "Code":
		a.Code = r.Text()
	case "IssuedAt":
		a.IssuedAt = r.Time()
	case "FirstBeat":
		a.FirstBeat = r.Time()
	case "EndedAt":
		a.EndedAt = r.Time()
	case "Error":
		a.Error = decodeJSON(r)
	default:
		r.Bad = true
	}
}

func decodeKey(r *jsonline.Reader, key string, k *jobs.Key) {
	switch key {
	case "Key":
		k.Key = r.Text()
	case "Print":
		i := 0
		r.List(func() {
			b := r.Uint()
			if i >= len(k.Print) || b > 255 {
				r.Bad = true
				return
			}
			k.Print[i] = byte(b)
			i++
		})
	case "JobID":
		k.JobID = r.Text()
	case "State":
		k.State = jobs.State(r.Text())
	case "Expires":
		k.Expires = r.Time()
	default:
		r.Bad = true
	}
}

func decodeAnswered(r *jsonline.Reader, key string, a *jobs.Answered) {
	switch key {
	case "WorkerID":
		a.WorkerID = r.Text()
	case "RequestID":
		a.RequestID = r.Text()
	case "Lease":
		r.Object(func(key string) { decodeLease(r, key, &a.Lease) })
	case "Expires":
		a.Expires = r.Time()
	default:
		r.Bad = true
	}
}
