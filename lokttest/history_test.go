package lokttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
	"github.com/lokt-dev/lokt/store/memstore"
)

// answers is a Service that says what it is told to say: the next answer, whatever is asked.
type answers struct {
	lokt.Service
	holder lokt.Holder
	err    error
}

func (a *answers) Acquire(context.Context, lokt.Claim) (lokt.Holder, error) { return a.holder, a.err }
func (a *answers) Renew(context.Context, lokt.Renewal) (lokt.Holder, error) { return a.holder, a.err }
func (a *answers) Release(context.Context, lokt.Target) ([]lokt.Holder, error) {
	if a.err != nil {
		return nil, a.err
	}
	return []lokt.Holder{a.holder}, nil
}

// script records one answer after another, in a bubble. A line is "acquire LEASE yes TOKEN", "renew LEASE no",
// "release LEASE unknown", "pass DURATION". Leases live for ten seconds.
func script(t *testing.T, lines ...string) error {
	t.Helper()
	var r *lokttest.Recorder
	synctest.Test(t, func(t *testing.T) {
		says := &answers{}
		r = lokttest.NewRecorder(says)
		for _, line := range lines {
			var what, lease, answer string
			var token uint64
			if n, _ := fmt.Sscan(line, &what, &lease, &answer, &token); n < 2 {
				t.Fatalf("script %q", line)
			}
			if what == "pass" {
				d, err := time.ParseDuration(lease)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(d)
				continue
			}
			switch answer {
			case "yes":
				says.holder, says.err = lokt.Holder{Claim: lokt.Claim{LeaseID: lease}, Token: token}, nil
			case "unknown":
				says.err = lokt.ErrUnavailable
			case "no":
				says.err = &lokt.GoneError{}
				if what == "acquire" {
					says.err = &lokt.BlockedError{}
				}
			}
			switch what {
			case "acquire":
				_, _ = r.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: lease, TTL: 10 * time.Second})
			case "renew":
				_, _ = r.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: lease})
			case "release":
				_, _ = r.Release(t.Context(), lokt.Target{Name: "x", LeaseID: lease})
			}
		}
	})
	return r.Check(2 * time.Minute)
}

func TestHistoriesAreJudged(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines string
		ok    bool
	}{
		{"taken, denied, given back, taken", "acquire a yes 1; acquire b no; release a yes 1; acquire b yes 2", true},
		{"denied while it is free", "acquire a no", false},
		{"denied after release", "acquire a yes 1; release a yes 1; acquire b no", false},
		{"granted twice", "acquire a yes 1; acquire b yes 2", false},
		{"a token that is repeated", "acquire a yes 1; release a yes 1; acquire b yes 1", false},
		{"a token that falls", "acquire a yes 5; release a yes 5; acquire b yes 4", false},
		{"a token that skips", "acquire a yes 1; release a yes 1; acquire b yes 9", true},
		{"a claim sent twice", "acquire a yes 1; acquire a yes 1; release a yes 1", true},
		{"a claim sent twice and granted twice", "acquire a yes 1; acquire a yes 2", false},
		{"expired to the moment", "acquire a yes 1; pass 10s; acquire b yes 2", false},
		{"expired", "acquire a yes 1; pass 10.001s; acquire b yes 2", true},
		{"expired early", "acquire a yes 1; pass 9s; acquire b yes 2", false},
		{"renewed, and expired by the first time to live", "acquire a yes 1; pass 9s; renew a yes 1; pass 9s; acquire b yes 2", false},
		{"renewed, and expired", "acquire a yes 1; pass 9s; renew a yes 1; pass 11s; acquire b yes 2", true},
		{"renewed after nobody noticed", "acquire a yes 1; pass 11s; renew a yes 1; acquire b no", true},
		{"renewed after another came", "acquire a yes 1; pass 11s; acquire b yes 2; renew a yes 1", false},
		{"renewed after another came and went", "acquire a yes 1; pass 11s; acquire b yes 2; release b yes 2; renew a yes 1", false},
		{"renewed with another token", "acquire a yes 1; renew a yes 2", false},
		{"renewed after release", "acquire a yes 1; release a yes 1; renew a yes 1", false},
		{"refused to renew what is held", "acquire a yes 1; renew a no", false},
		{"refused to release what is held", "acquire a yes 1; release a no", false},
		{"released twice", "acquire a yes 1; release a yes 1; release a yes 1", false},
		{"released twice, the second time in vain", "acquire a yes 1; release a yes 1; release a no", true},
		{"a release that may have been done", "acquire a yes 1; release a unknown; acquire b yes 2", true},
		{"a release that was not done", "acquire a yes 1; release a unknown; acquire b no; renew a yes 1", true},
		{"a release that was done, and was not", "acquire a yes 1; release a unknown; acquire b yes 2; release b yes 2; renew a yes 1", false},
		{"a claim that may have been granted", "acquire a unknown; acquire b no", true},
		{"a claim that may have been granted and undone", "acquire a unknown; acquire b no; acquire c yes 2", true},
		{"a claim that was not granted", "acquire a unknown; acquire b yes 1; release b yes 1", true},
		{"a claim that was granted, as the second try shows", "acquire a unknown; acquire b no; acquire a yes 1; renew a yes 1; acquire b no", true},
		{"a claim of unknown outcome does not excuse all", "acquire a unknown; acquire b yes 1; acquire c yes 2", false},
		{"a renewal of unknown outcome", "acquire a yes 1; pass 9s; renew a unknown; pass 5s; acquire b no; renew a yes 1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := script(t, strings.Split(c.lines, "; ")...)
			if (err == nil) != c.ok {
				t.Errorf("%s: %v", c.lines, err)
			}
		})
	}
}

// lateGrants grants claims that wait the token 3 after a while, denies others, and grants these the token 2 when they come again.
type lateGrants struct {
	lokt.Service
	denied bool
}

func (l *lateGrants) Acquire(_ context.Context, c lokt.Claim) (lokt.Holder, error) {
	switch {
	case c.Wait > 0:
		time.Sleep(100 * time.Millisecond)
		return lokt.Holder{Claim: c, Token: 3}, nil
	case !l.denied:
		l.denied = true
		return lokt.Holder{}, &lokt.BlockedError{}
	}
	return lokt.Holder{Claim: c, Token: 2}, nil
}

func (l *lateGrants) Release(_ context.Context, t lokt.Target) ([]lokt.Holder, error) {
	return []lokt.Holder{{Claim: lokt.Claim{Name: t.Name, LeaseID: t.LeaseID}, Token: 2}}, nil
}

func TestAGrantThatEndedBeforeItsClaimantRanExplainsADenial(t *testing.T) {
	for slack, explained := range map[time.Duration]bool{0: false, 5 * time.Millisecond: true} {
		var r *lokttest.Recorder
		synctest.Test(t, func(t *testing.T) {
			r = lokttest.NewRecorder(&lateGrants{})
			r.Slack = slack
			go func() {
				_, _ = r.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "a", TTL: 30 * time.Millisecond, Wait: time.Minute})
			}()
			b := lokt.Claim{Name: "x", LeaseID: "b", TTL: time.Minute}
			for range 2 {
				time.Sleep(20 * time.Millisecond)
				_, _ = r.Acquire(t.Context(), b)
			}
			_, _ = r.Release(t.Context(), lokt.Target{Name: b.Name, LeaseID: b.LeaseID})
			time.Sleep(time.Minute)
		})
		if err := r.Check(time.Minute); (err == nil) != explained {
			t.Errorf("with slack %v: %v", slack, err)
		}
	}
}

func TestHistoriesThatCannotBeJudgedAreNotPassed(t *testing.T) {
	for what, ask := range map[string]func(r *lokttest.Recorder){
		"shared": func(r *lokttest.Recorder) {
			_, _ = r.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, Limit: 2})
		},
		"force": func(r *lokttest.Recorder) { _, _ = r.Release(t.Context(), lokt.Target{Name: "x", Force: true}) },
	} {
		r := lokttest.NewRecorder(open(t))
		ask(r)
		if err := r.Check(time.Second); err == nil {
			t.Errorf("a history with %s requests was passed", what)
		}
	}
}

// brokenStore changes what is stored.
type brokenStore struct {
	lokt.Store
	breaking func(before, after *lokt.Lock)
}

func (s *brokenStore) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	return s.Store.Update(ctx, name, func(snap lokt.Snapshot) lokt.Change {
		before := snap.Lock.Clone()
		c := change(snap)
		c.Lock = c.Lock.Clone()
		s.breaking(&before, &c.Lock)
		return c
	})
}

// forgiving renews what has expired, if it remembers it.
type forgiving struct {
	lokt.Service
	last sync.Map // of holders, by lease ID
}

func (f *forgiving) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	h, err := f.Service.Acquire(ctx, c)
	if err == nil {
		f.last.Store(h.LeaseID, h)
	}
	return h, err
}

func (f *forgiving) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	h, err := f.Service.Renew(ctx, r)
	if old, ok := f.last.Load(r.LeaseID); ok && errors.Is(err, lokt.ErrNotOwner) {
		return old.(lokt.Holder), nil
	}
	return h, err
}

func TestBrokenServicesAreFoundOut(t *testing.T) {
	over := func(breaking func(before, after *lokt.Lock)) func() lokt.Service {
		return func() lokt.Service { return lokt.NewManager(&brokenStore{memstore.New(), breaking}) }
	}
	for name, broken := range map[string]func() lokt.Service{
		"one that repeats a token now and then": over(func(before, after *lokt.Lock) {
			if after.Token == before.Token+1 && after.Token%7 == 0 {
				after.Token--
				after.Holders[len(after.Holders)-1].Token--
			}
		}),
		"one whose leases end a fifth too early": over(func(_, after *lokt.Lock) {
			for i, h := range after.Holders {
				if h.ExpiresAt.Equal(h.AcquiredAt.Add(h.TTL)) {
					after.Holders[i].ExpiresAt = h.AcquiredAt.Add(h.TTL * 4 / 5)
				}
			}
		}),
		"one that forgets a holder now and then": over(func(before, after *lokt.Lock) {
			if after.Token == before.Token+1 && after.Token%7 == 0 {
				after.Holders = nil
			}
		}),
		"one that renews what another has taken over": func() lokt.Service {
			return &forgiving{Service: lokt.NewManager(memstore.New())}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(60) {
				var r *lokttest.Recorder
				synctest.Test(t, func(t *testing.T) {
					r = lokttest.NewRecorder(broken())
					lokttest.Exercise(t, r, 4, 12, 10*time.Second, seed)
				})
				if err := r.Check(time.Second / 2); err != nil {
					if !strings.Contains(err.Error(), "illegal") {
						t.Logf("seed %d: %.60s", seed, err)
						continue
					}
					return
				}
			}
			t.Error("sixty histories were passed")
		})
	}
}
