package jobstest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/lokt-dev/lokt/jobs"
)

var readTests = []serviceTest{
	{name: "the list has the newest change first, page by page", run: listIsPaged},
	{name: "the list is filtered by state, type and tag", run: listIsFiltered},
	{name: "workers are known with their leases", run: workersAreKnown},
	{name: "statistics count what ended, by type", run: statsCount},
	{name: "decisions count events, by tag", run: decisionsCount},
	{name: "cleaning up leaves what is younger", run: cleanupLeavesYoung},
}

// ids returns the jobs of a page.
func ids(p jobs.Page) []string {
	var all []string
	for _, v := range p.Jobs {
		all = append(all, v.Job.ID)
	}
	return all
}

// list returns a page.
func (e *env) list(f jobs.Filter) jobs.Page {
	e.Helper()
	p, err := e.s.List(e.within(), f)
	if err != nil || p.Now.IsZero() {
		e.Fatalf("list answered %+v, %v", p, err)
	}
	return p
}

func listIsPaged(e *env) {
	var want []string // newest change first
	changed := func(id string) {
		want = slices.DeleteFunc(want, func(o string) bool { return o == id })
		want = slices.Insert(want, 0, id)
	}
	for range 10 {
		changed(e.submit())
	}
	for i := range 6 {
		g := e.grant(ask("w"))
		changed(g.Job.ID)
		if i%2 == 0 {
			e.complete(g, jobs.Completed)
			changed(g.Job.ID)
		} else if i%3 == 0 {
			e.beat(g)
			changed(g.Job.ID)
		}
	}
	e.cancel(want[9], jobs.Cancelled)
	changed(want[9])
	if p := e.list(jobs.Filter{}); !slices.Equal(ids(p), want) || p.Next != "" || p.Snapshot != e.status() {
		e.Errorf("listed are %v, not %v; snapshot %+v, next %q", ids(p), want, p.Snapshot, p.Next)
	}
	for size := range 11 {
		var got []string
		f := jobs.Filter{Limit: size + 1}
		for range 12 {
			p := e.list(f)
			if len(p.Jobs) > size+1 {
				e.Fatalf("a page of %d has %d jobs", size+1, len(p.Jobs))
			}
			got = append(got, ids(p)...)
			if f.After = p.Next; f.After == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			e.Errorf("pages of %d list %v, not %v", size+1, got, want)
		}
	}
	if p := e.list(jobs.Filter{Limit: -5}); len(p.Jobs) != 1 {
		e.Errorf("a limit below 1 gives %d jobs", len(p.Jobs))
	}
	if p := e.list(jobs.Filter{Limit: math.MaxInt}); len(p.Jobs) != 10 {
		e.Errorf("a large limit gives %d jobs", len(p.Jobs))
	}
	half := e.list(jobs.Filter{Limit: 5})
	e.complete(e.grant(ask("w")), jobs.Completed) // moves to the front, between two pages
	rest := e.list(jobs.Filter{Limit: 5, After: half.Next})
	for _, id := range ids(rest) {
		if slices.Contains(ids(half), id) {
			e.Errorf("job %s is on both pages", id)
		}
	}
}

func listIsFiltered(e *env) {
	done := e.submit(kind("a"), tags("x"))
	e.complete(e.grant(ask("w")), jobs.Completed)
	running := e.submit(kind("b"), tags("x", "y"))
	e.beat(e.grant(ask("w")))
	leased := e.submit(kind("a"))
	e.grant(ask("w"))
	queued := e.submit(kind("b"), tags("y"))
	for _, c := range []struct {
		f    jobs.Filter
		want []string
	}{
		{jobs.Filter{State: jobs.Queued}, []string{queued}}, {jobs.Filter{State: jobs.Leased}, []string{leased}},
		{jobs.Filter{State: jobs.Running}, []string{running}}, {jobs.Filter{State: jobs.Completed}, []string{done}},
		{jobs.Filter{State: jobs.Failed}, nil}, {jobs.Filter{Type: "a"}, []string{leased, done}},
		{jobs.Filter{Tag: "x"}, []string{running, done}},
		{jobs.Filter{Type: "b", Tag: "y", State: jobs.Queued}, []string{queued}}, {jobs.Filter{Tag: "z"}, nil},
	} {
		if got := ids(e.list(c.f)); !slices.Equal(got, c.want) {
			e.Errorf("filter %+v lists %v, not %v", c.f, got, c.want)
		}
	}
	for _, v := range e.list(jobs.Filter{}).Jobs {
		if v.InQueue != (v.Job.ID == queued) || (v.Lease != nil) != (v.Job.ID == leased || v.Job.ID == running) ||
			v.Age < 0 || v.SinceUpdate < 0 || v.SinceUpdate > v.Age {
			e.Errorf("listed is %+v", v)
		}
	}
}

func workersAreKnown(e *env) {
	e.submit()
	e.submit()
	e.grant(ask("b"))
	e.grant(ask("b"))
	e.deny(jobs.DeniedEmpty, ask("a"))
	all, err := e.s.Workers(e.within())
	if err != nil || len(all) != 2 || all[0].ID != "a" || all[0].Leases != 0 || all[1].ID != "b" ||
		all[1].Leases != 2 || all[0].LastSeen.IsZero() {
		e.Errorf("workers are %+v, %v", all, err)
	}
}

func statsCount(e *env) {
	for i, status := range []jobs.State{jobs.Completed, jobs.Completed, jobs.Completed, jobs.Failed} {
		e.submit(kind([]string{"a", "b"}[i/2]))
		e.complete(e.grant(ask("w")), status)
	}
	e.cancel(e.submit(kind("a")), jobs.Cancelled)
	e.submit() // does not count
	s, err := e.s.Stats(e.within(), 30)
	if err != nil {
		e.Fatal(err)
	}
	if s.Total != 5 || s.ByState[jobs.Completed] != 3 || s.ByState[jobs.Failed] != 1 ||
		s.ByState[jobs.Cancelled] != 1 || s.SuccessRate != 0.6 || s.AvgWait < 0 || s.P95Runtime < 0 {
		e.Errorf("statistics are %+v", s)
	}
	if len(s.ByType) != 2 || s.ByType["a"].Total != 3 || s.ByType["b"].SuccessRate != 0.5 {
		e.Errorf("by type they are %+v", s.ByType)
	}
	for _, c := range []struct {
		state   jobs.State
		jobType string
		want    int
	}{{want: 5}, {jobs.Completed, "", 3}, {jobs.Completed, "b", 1}, {"", "a", 3}, {jobs.Queued, "", 0}, {jobs.Failed, "none", 0}} {
		if n, err := e.s.CountEnded(e.within(), c.state, c.jobType); err != nil || n != c.want {
			e.Errorf("%+v: %d are counted, %v", c, n, err)
		}
	}
}

func decisionsCount(e *env) {
	e.submit(tags("x", "x", "y"))
	e.submit(tags("x"))
	g := e.grant(ask("w"))
	e.complete(g, jobs.Completed)
	for range 3 {
		e.deny(jobs.DeniedEligible, ask("w", types("none")))
	}
	d, err := e.s.Decisions(e.within(), 7)
	if err != nil || d.Days != 7 {
		e.Fatalf("decisions are %+v, %v", d, err)
	}
	got := fmt.Sprint(d.Events, d.Tags["x"][jobs.EventSubmit], d.Tags["x"][jobs.EventComplete],
		d.Tags["y"][jobs.EventGrant], len(d.Tags))
	if got != "map[completed:1 granted:1 running:1 submitted:2] 2 1 1 2" {
		e.Errorf("decisions are %s", got)
	}
}

func cleanupLeavesYoung(e *env) {
	id := e.submit()
	e.complete(e.grant(ask("w")), jobs.Completed)
	for _, days := range []int{1, jobs.MaxDays + 1, math.MaxInt} {
		if n, err := e.s.Cleanup(e.within(), days); err != nil || n != 0 {
			e.Errorf("cleaning up what is older than %d days answered %d, %v", days, n, err)
		}
	}
	e.expect(id, jobs.Completed)
}

var crowdTests = []serviceTest{
	{name: "many workers do every job exactly once, within the capacity", run: manyWorkers},
	{name: "heartbeats and completions that race agree on one end", run: beatsRaceCompletion},
}

func manyWorkers(e *env) {
	const n, workers = 300, 16
	var specs []jobs.Spec
	for i := range n {
		specs = append(specs, spec(units(1+i%4), class(jobs.Priorities()[i%4]), attempts(2), backoff(0)))
	}
	if _, err := e.s.Submit(e.within(), specs); err != nil {
		e.Fatal(err)
	}
	var mu sync.Mutex
	done, holding, units := map[string]int{}, map[string]bool{}, 0
	work := func(worker string) {
		for round := 0; ; round++ {
			g, err := e.s.Request(e.within(), ask(worker, waiting(jobs.MaxWait/100)))
			if err != nil {
				e.Errorf("ask: %v", err)
				return
			}
			if g.Denied != nil {
				if g.Denied.Code == jobs.DeniedEmpty {
					return
				}
				continue
			}
			mu.Lock()
			units += g.Lease.Units
			if units > 10 || holding[g.Job.ID] {
				e.Errorf("%d units are out, job held twice: %v", units, holding[g.Job.ID])
			}
			holding[g.Job.ID] = true
			status := jobs.Completed
			if g.Lease.Attempt == 1 && (len(done)+round)%7 == 0 {
				status = jobs.Failed
			} else {
				done[g.Job.ID]++
			}
			mu.Unlock()
			if _, err := e.s.Heartbeat(e.within(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: worker}); err != nil {
				e.Errorf("heartbeat: %v", err)
			}
			mu.Lock() // before the service may give them to another
			units -= g.Lease.Units
			holding[g.Job.ID] = false
			mu.Unlock()
			if ok, err := e.s.Complete(e.within(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: worker,
				Status: status}); err != nil || !ok {
				e.Errorf("completion: %v, %v", ok, err)
			}
		}
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { work(fmt.Sprint("w", i)) })
	}
	wg.Wait()
	for id, times := range done {
		if times != 1 {
			e.Errorf("job %s was done %d times", id, times)
		}
	}
	if s := e.status(); len(done) != n || s.Leased != 0 || s.Queue.Sum() != 0 {
		e.Errorf("%d jobs were done, and there is %+v", len(done), s)
	}
}

func beatsRaceCompletion(e *env) {
	for i := range 20 {
		id := e.submit()
		g := e.grantOf(id, ask("w"))
		var mu sync.Mutex
		var wg sync.WaitGroup
		var ends []string
		for _, status := range []jobs.State{jobs.Completed, jobs.Failed} {
			wg.Go(func() {
				ok, err := e.s.Complete(e.within(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: status})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					e.Errorf("completion: %v", err)
				} else if ok {
					ends = append(ends, string(status))
				}
			})
			wg.Go(func() {
				for range 5 {
					_, err := e.s.Heartbeat(e.within(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"})
					if err != nil && jobs.Code(err) != "lease_not_found" {
						e.Errorf("heartbeat: %v", err)
					}
				}
			})
		}
		wg.Wait()
		if v := e.view(id); len(ends) != 1 || string(v.Job.State) != ends[0] {
			e.Fatalf("round %d ended as %s, and was told so: %s", i, v.Job.State, strings.Join(ends, ", "))
		}
	}
}
