package rows

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/memstore"
)

func TestEveryReasonToWaitHasWords(t *testing.T) {
	seen := map[string]bool{}
	for _, why := range []string{
		jobs.WaitingCapacity, jobs.WaitingReserved + "J", jobs.WaitingUnique, jobs.WaitingWorker, jobs.WaitingLock + "db", jobs.WaitingRunAt, jobs.WaitingFrozen,
		jobs.WaitingAfter + "K", jobs.WaitingRate + "api",
	} {
		v := jobs.View{Job: jobs.Job{Spec: jobs.Spec{Units: 3}, State: jobs.Queued}, InQueue: true, WaitingFor: why}
		text := OfJob(&v, func(string) string { return "ana" }).Why
		if _, name, named := strings.Cut(why, ":"); text == why || text == "" || seen[text] || named && !strings.Contains(text, name) {
			t.Errorf("%s: %q", why, text)
		}
		seen[text] = true
	}
	if !seen["waits for lock db, held by ana"] {
		t.Error(seen)
	}
}

func TestWhatAJobEndedForIsOneLine(t *testing.T) {
	for want, j := range map[string]jobs.Job{
		"no such file":                            {State: jobs.Failed, Code: jobs.CodeFailed, Output: &jobs.Report{Error: jsontext.Value(`{"message":"no such file\nat line 3","exit_code":1}`)}},
		"its worker was not heard of in time":     {State: jobs.Expired, Code: jobs.CodeExpired, Output: &jobs.Report{Error: jsontext.Value(`"of an earlier attempt"`)}},
		"its lease was revoked: the disk is full": {State: jobs.Failed, Code: jobs.CodeRevoked, Reason: "the disk is full"},
		"failed":     {State: jobs.Failed, Code: jobs.CodeFailed},
		"not needed": {State: jobs.Cancelled, Code: jobs.CodeCancelled, Reason: "not needed"},
	} {
		if got := OfJob(&jobs.View{Job: j}, nil).Why; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestLocksThatNeedAttentionComeFirst(t *testing.T) {
	ctx := t.Context()
	m := lokt.NewManager(memstore.New())
	hold := func(name string, c lokt.Claim) {
		c.Name, c.Owner = name, lokt.Owner{ID: "ana", AnySession: true}
		if _, err := m.Acquire(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	hold("calm", lokt.Claim{})
	hold("late", lokt.Claim{TTL: time.Minute})
	hold("shared", lokt.Claim{Limit: lokt.Shared})
	if _, err := m.Freeze(ctx, "closed", lokt.Freeze{Owner: lokt.Owner{ID: "ops"}, Reason: "release"}); err != nil {
		t.Fatal(err)
	}
	b, err := Locks(ctx, m)
	all := b.Locks
	if err != nil || len(all) != 4 || all[0].Name != "closed" || all[0].Why != "release" || all[3].Limit != "any" {
		t.Errorf("%+v, %v", all, err)
	}
	s, err := m.Get(ctx, "late")
	if err != nil {
		t.Fatal(err)
	}
	if s.Now = s.Now.Add(41 * time.Second); OfLock(s).State != Overdue {
		t.Error(OfLock(s))
	}
	if s.Now = s.Now.Add(time.Minute); OfLock(s).State != Stale {
		t.Error(OfLock(s))
	}
	asked := 0
	who := Holders(ctx, m, func(lock string) bool { asked++; return lock != "calm" })
	first, again, hidden := who("late"), who("late"), who("calm")
	if first != "ana" || again != "ana" || hidden != "" || asked != 2 {
		t.Error(first, again, hidden, asked)
	}
}

func TestFindGoesOnWhereItStopped(t *testing.T) {
	list := pages{}
	for i := range 5 {
		list = append(list, jobs.View{Job: jobs.Job{ID: string(rune('a' + i)), Spec: jobs.Spec{Payload: jsontext.Value(`{"n":"Odd"}`)}, Revision: uint64(9 - i)}})
	}
	list[1].Job.Payload = jsontext.Value(`{}`)
	var ids string
	for after := "-"; after != ""; {
		after = strings.TrimPrefix(after, "-")
		next, _, err := Find(t.Context(), list, &Filter{Text: "odd"}, after, func(v *jobs.View) bool {
			ids += v.Job.ID
			return len(ids)%2 != 0
		})
		if err != nil {
			t.Fatal(err)
		}
		after = next
	}
	if ids != "acde" {
		t.Error(ids)
	}
}

// pages is a list of jobs, newest change first, of which each answer tells two.
type pages []jobs.View

func (l pages) List(_ context.Context, f jobs.Filter) (p jobs.Page, err error) {
	below, err := jobs.ParseCursor(f.After)
	for _, v := range l {
		if v.Job.Revision < below && len(p.Jobs) < 2 {
			p.Jobs = append(p.Jobs, v)
			p.Next = jobs.Cursor(v.Job.Revision)
		}
	}
	if len(p.Jobs) == 0 || p.Jobs[len(p.Jobs)-1].Job.Revision == l[len(l)-1].Job.Revision {
		p.Next = ""
	}
	return p, err
}

// limited keeps how many jobs were asked for.
type limited struct {
	pages
	limits []int
}

func (l *limited) List(ctx context.Context, f jobs.Filter) (jobs.Page, error) {
	l.limits = append(l.limits, f.Limit)
	return l.pages.List(ctx, f)
}

func TestListsOfLargeJobsAreShort(t *testing.T) {
	l := &limited{}
	for i := range 6 {
		v := jobs.View{Job: jobs.Job{Spec: jobs.Spec{Payload: jsontext.Value(`{}`)}, Revision: uint64(9 - i)}}
		if i < 2 {
			v.Job.Output = &jobs.Report{Result: jsontext.Value(strings.Repeat("1", 1<<20))}
		}
		l.pages = append(l.pages, v)
	}
	if _, looked, err := Find(t.Context(), l, &Filter{}, "", func(*jobs.View) bool { return true }); err != nil || looked != 6 || !slices.Equal(l.limits, []int{200, 7, 1000}) {
		t.Error(looked, l.limits, err)
	}
}
