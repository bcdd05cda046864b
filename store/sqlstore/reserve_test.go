package sqlstore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Promise S-164.
func TestWhereNoRoomCanBeKeptADatabaseIsOpenedAllTheSame(t *testing.T) {
	t.Parallel()
	path, other := filepath.Join(t.TempDir(), "lokt.db"), filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path+".reserve"); err != nil {
		t.Skip("no symbolic links can be made here")
	}
	db, err := Open(t.Context(), "sqlite:"+path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := lokt.NewManager(db.Locks()).Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "o"}, TTL: time.Hour}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "other" {
		t.Errorf("the other file has %q, %v", b, err)
	}
}

func TestTheReserveIsForWhatEndsSomething(t *testing.T) {
	t.Parallel()
	locked := func(holders, waiters int) *entry {
		return &entry{lock: lokt.Lock{Holders: make([]lokt.Holder, holders), Queue: make([]lokt.Waiter, waiters)}}
	}
	event := func(types ...jobs.EventType) (all []jobs.Event) {
		for _, kind := range types {
			all = append(all, jobs.Event{Type: kind})
		}
		return all
	}
	for name, c := range map[string]struct {
		was, is *entry
		turn    *jobs.Changes
		ends    bool
	}{
		"release":             {locked(1, 0), locked(0, 0), nil, true},
		"passed on":           {locked(1, 1), locked(1, 0), nil, true},
		"renewal":             {locked(1, 1), locked(1, 1), nil, true},
		"claim":               {locked(0, 0), locked(1, 0), nil, false},
		"waiter":              {locked(1, 0), locked(1, 1), nil, false},
		"nothing":             {nil, nil, nil, false},
		"submit":              {nil, nil, &jobs.Changes{Events: event(jobs.EventSubmit)}, false},
		"grant":               {nil, nil, &jobs.Changes{Events: event(jobs.EventGrant), Leases: make([]jobs.Lease, 1)}, false},
		"completion":          {nil, nil, &jobs.Changes{Events: event(jobs.EventComplete), Ended: make([]jobs.Job, 1)}, true},
		"failure, and grant":  {nil, nil, &jobs.Changes{Events: event(jobs.EventRetry, jobs.EventGrant), Unleased: []string{"x"}}, true},
		"heartbeat":           {nil, nil, &jobs.Changes{Events: event(jobs.EventRunning), Leases: make([]jobs.Lease, 1)}, true},
		"release, and submit": {locked(1, 0), locked(0, 0), &jobs.Changes{Events: event(jobs.EventSubmit)}, false},
	} {
		b := &batch{were: map[string]*entry{}, locks: map[string]*entry{}}
		if c.is != nil {
			b.were["x"], b.locks["x"] = c.was, c.is
		}
		if c.turn != nil {
			b.jobs = append(b.jobs, c.turn)
		}
		if b.ends() != c.ends {
			t.Errorf("%s: %v", name, b.ends())
		}
	}
}
