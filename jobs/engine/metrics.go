package engine

import (
	"maps"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// Metrics are what a manager has counted since it was opened, and what waits in it now. Counts never fall. What a turn
// did counts once it is known to be stored. Numbers over restarts are those of Decisions and Stats.
type Metrics struct {
	Events     map[jobs.EventType]uint64 // of jobs: grants, ends, retries and the like
	Denied     map[string]uint64         // requests, by the code of the denial
	Ended      map[string]uint64         // leases that ended, by why: CodeExpired and the like
	Heartbeats uint64                    // heartbeats that extended a lease, each of a batch
	Refused    map[string]uint64         // heartbeats that did not, by the code of the error

	Wait  jobs.Histogram // of each lease's job, from when it could run until it was leased
	Run   jobs.Histogram // of each lease that ended, from its beginning
	Store jobs.Histogram // of each turn, in the store

	Failures uint64 // turns of which the store did not say that they are stored

	ParkedRequests, ParkedHeartbeats int // requests that wait now

	Oldest map[jobs.Priority]time.Time // since when the first job of each priority's lines could have run
}

// NewMetrics returns metrics that have counted nothing.
func NewMetrics() Metrics {
	return Metrics{
		Events: map[jobs.EventType]uint64{}, Denied: map[string]uint64{}, Ended: map[string]uint64{}, Refused: map[string]uint64{},
	}
}

// Stored counts what a turn did that was stored.
func (m *Metrics) Stored(out *Outcome) {
	for i := range out.Changes.Events {
		e := &out.Changes.Events[i]
		m.Events[e.Type]++
		switch {
		case e.Type == jobs.EventGrant:
			m.Wait.Observe(e.Took)
		case e.LeaseID != "" && e.Code != "": // what is no end has no code
			m.Ended[e.Code]++
			m.Run.Observe(e.Took)
		}
	}
	for i := range out.Replies {
		switch v := out.Replies[i].Result.(type) {
		case jobs.Grant:
			if v.Denied != nil {
				m.Denied[v.Denied.Code]++
			}
		case []jobs.LeaseAnswer:
			m.Heard(v)
		}
	}
}

// Heard counts heartbeats.
func (m *Metrics) Heard(all []jobs.LeaseAnswer) {
	for i := range all {
		if err := all[i].Err; err != nil {
			m.Refused[jobs.Code(err)]++
		} else {
			m.Heartbeats++
		}
	}
}

// Clone returns a copy that does not change any more.
func (m Metrics) Clone() Metrics {
	m.Events, m.Denied, m.Ended, m.Refused = maps.Clone(m.Events), maps.Clone(m.Denied), maps.Clone(m.Ended), maps.Clone(m.Refused)
	m.Wait, m.Run, m.Store = m.Wait.Clone(), m.Run.Clone(), m.Store.Clone()
	return m
}
