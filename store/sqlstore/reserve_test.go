package sqlstore

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
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

func TestAReserveThatWasRemovedIsMadeAnewAsAWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lokt.db")
	r := reserveOf(path)
	if !r.fill(true) {
		t.Skip("there is too little room on this disk")
	}
	if !r.give(reserveStep) || r.size != reserveSize-reserveStep {
		t.Errorf("a step was given up, and %d bytes are left", r.size)
	}
	if err := os.Remove(path + ".reserve"); err != nil {
		t.Fatal(err)
	}
	if r.give(reserveStep) {
		t.Error("a file that is not there was given up")
	}
	if !r.fill(true) {
		t.Fatal("it was not made again")
	}
	b, err := os.ReadFile(path + ".reserve")
	if err != nil || len(b) != reserveSize {
		t.Fatalf("it has %d bytes, error %v", len(b), err)
	}
	for at := 0; at < len(b); at += 4096 {
		if block := b[at : at+4096]; bytes.Count(block, []byte{0}) == len(block) {
			t.Fatalf("at %d there is nothing in it", at)
		}
	}
}

// Promise S-164.
func TestOfTheReserveThatIsGivenUpWhichIsThere(t *testing.T) {
	t.Parallel()
	size := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			return -1
		}
		return info.Size()
	}
	r := reserveOf(filepath.Join(t.TempDir(), "lokt.db"))
	if !r.fill(true) || size(r.path) != reserveSize {
		t.Skip("there is no room for it")
	}
	if err := os.Truncate(r.path, 1000); err != nil { // by somebody else
		t.Fatal(err)
	}
	if !r.give(reserveStep) || size(r.path) != 0 {
		t.Errorf("of 1000 bytes %d are left", size(r.path))
	}
	if !r.fill(true) || size(r.path) != reserveSize {
		t.Errorf("it is made again with %d bytes", size(r.path))
	}
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	if r.give(reserveStep) || size(r.path) >= 0 {
		t.Errorf("it is given up though it was removed, and has %d bytes then", size(r.path))
	}
	if !r.fill(true) || size(r.path) != reserveSize {
		t.Errorf("it is made again with %d bytes", size(r.path))
	}
	const foreign = reserveSize + 1
	if err := os.Truncate(r.path, foreign); err != nil {
		t.Fatal(err)
	}
	if r.give(reserveSize) || r.fill(true) || size(r.path) != foreign {
		t.Errorf("a file that is too large to be it has %d bytes", size(r.path))
	}
}

// Promise S-164.
func TestAReserveThatWasRemovedIsMadeAgainThoughNothingIsStored(t *testing.T) {
	t.Parallel()
	db := start(t, place(t), Options{})
	path := db.Path() + ".reserve"
	if err := os.Remove(path); err != nil {
		t.Skip("there is no room for it")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err := db.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err == nil && info.Size() == reserveSize {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it is not made again")
		}
	}
}

// There is room again as soon as a transaction that was too large is undone.
func TestADatabaseThatWasFoundFullLacksRoomWhateverIsFreeThen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "small.db")
	c, err := dial(dsn(path), "PRAGMA max_page_count = 1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.once(t.Context(), "CREATE TABLE x (y)"); !lacksRoom(err, path) {
		t.Errorf("%v", err)
	}
}

// Promise S-164. Somebody else, such as root, may have made a backup of a database that nobody used, and the reserve with it.
func TestAReserveThatOthersMadeIsGivenUpAsAWhole(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" || os.Getuid() == 0 {
		t.Skip("every file can be written here, or none removed")
	}
	r := reserveOf(filepath.Join(t.TempDir(), "lokt.db"))
	if err := os.WriteFile(r.path, make([]byte, reserveSize), 0o400); err != nil {
		t.Fatal(err)
	}
	if !r.give(reserveStep) {
		t.Error("it is not given up")
	}
	if !r.fill(true) || !r.give(reserveStep) || r.size != reserveSize-reserveStep {
		t.Errorf("it is made anew, and %d bytes are left of it", r.size)
	}
}

func TestTheReserveIsForWhatEndsSomething(t *testing.T) {
	t.Parallel()
	locked := func(holders, waiters int) *entry {
		return &entry{lock: lokt.Lock{Holders: make([]lokt.Holder, holders), Queue: make([]*lokt.Waiter, waiters)}}
	}
	frozen := locked(1, 0)
	frozen.lock.Freeze = &lokt.Freeze{}
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
		"freeze of a type":    {nil, nil, &jobs.Changes{Refrozen: true}, false},
		"freeze":              {locked(1, 0), frozen, nil, false},
		"renewal when frozen": {frozen, frozen, nil, true},
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
	for name, c := range map[string]struct {
		told []lokt.EventType
		turn *jobs.Changes
		ends bool
	}{
		"release of what is gone":     {[]lokt.EventType{lokt.EventMismatch}, nil, true},
		"renewal of what is gone":     {[]lokt.EventType{lokt.EventRenewFail, lokt.EventMismatch}, nil, true},
		"refusal":                     {[]lokt.EventType{lokt.EventDeny}, nil, false},
		"refusal, and late release":   {[]lokt.EventType{lokt.EventMismatch, lokt.EventDeny}, nil, false},
		"refusal beside a completion": {[]lokt.EventType{lokt.EventDeny}, &jobs.Changes{Events: event(jobs.EventComplete), Ended: make([]jobs.Job, 1)}, true},
		"late release, and submit":    {[]lokt.EventType{lokt.EventMismatch}, &jobs.Changes{Events: event(jobs.EventSubmit)}, false},
	} {
		b := &batch{}
		for _, kind := range c.told {
			b.told = append(b.told, []lokt.Event{{Type: kind}})
		}
		if c.turn != nil {
			b.jobs = append(b.jobs, c.turn)
		}
		if b.ends() != c.ends {
			t.Errorf("%s: %v", name, b.ends())
		}
	}
}

func TestAReserveThatIsWholeWithRoomBesideItIsNotTakenForOneThatWasGivenUp(t *testing.T) {
	t.Parallel()
	var told []error
	db := start(t, place(t), Options{Observe: func(op string, _ time.Duration, err error) {
		if op == "reserve" {
			told = append(told, err)
		}
	}})
	if _, known := space(t.TempDir()); !known {
		t.Skip("how much room there is is not known here")
	}
	acquire(t, db, claim("a", "a", time.Minute))
	told, db.reserve.given, db.reserve.looked = nil, true, time.Time{} // what was given up was taken back
	acquire(t, db, claim("b", "b", time.Minute))
	if db.reserve.given || len(told) != 1 || told[0] != nil {
		t.Errorf("given up: %v, told %v", db.reserve.given, told)
	}
}
