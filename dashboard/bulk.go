package dashboard

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/rows"
	"github.com/lokt-dev/lokt/jobs"
)

// Bounds on an action on many jobs: how long it can be undone before it begins, unless the configuration says otherwise,
// for how many jobs it may be, how many are looked at for a page, how many actions are kept in memory, and for how long after
// the end.
const (
	undoFor  = 30 * time.Second
	mostBulk = 100_000
	glance   = 5_000
	mostRuns = 20
	runKept  = time.Hour
)

// retry is one of the verbs.
const retry = "retry"

// verbs are what can be done with many jobs, and which states it is for.
func verbs() map[string]func(jobs.State) bool {
	return map[string]func(jobs.State) bool{"cancel": func(s jobs.State) bool { return !s.Ended() }, retry: retriable}
}

func retriable(s jobs.State) bool { return s.Ended() && s != jobs.Completed }

// bulkBody is the JSON twin of the page that asks whether many jobs are meant.
type bulkBody struct {
	Verb   string      `json:"action"`
	Which  string      `json:"filter"`
	Count  int         `json:"count"`
	More   bool        `json:"more,omitzero"` // only so many are counted, and done
	Some   bool        `json:"some,omitzero"` // only some jobs were looked at
	Set    string      `json:"set,omitzero"`  // stands for the jobs, if they were looked at: others are as many, and are not meant
	All    bool        `json:"-"`             // are asked for
	Key    string      `json:"-"`             // makes a form that is sent twice one action
	Query  string      `json:"-"`
	Filter rows.Filter `json:"-"`
	states []jobs.State
}

// selected returns the jobs that the filter and the action are for. The person must have the right to do it to each. Only
// so many are looked at if their documents have to be read, unless all are asked for.
func (d *Dashboard) selected(v *visit, b *bulkBody) (ids []string, err error) {
	var looked int
	var refused error
	for _, state := range b.states {
		f, after, next := b.Filter, "", "-"
		for f.State = string(state); cmp.Or(err, refused) == nil && next != ""; after = next {
			if b.More = len(ids) == mostBulk; b.More {
				break
			}
			if b.Some = !b.simple() && !b.All && looked > glance; b.Some {
				break
			}
			var n int
			next, n, err = rows.Find(v.r.Context(), d.Jobs, &f, after, func(j *jobs.View) bool {
				if b.Verb == "cancel" && schedule(j) && b.Filter.State == "" {
					return true
				}
				if refused == nil {
					refused = v.need(Submit, j.Job.Tags...)
				}
				if refused == nil && b.Verb == retry {
					refused = v.mayLock(j.Job.Locks)
				}
				ids = append(ids, j.Job.ID)
				return len(ids) < mostBulk
			})
			looked += n
		}
	}
	b.Count = len(ids)
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(ids)), " ")))
	b.Set = hex.EncodeToString(sum[:8])
	return ids, cmp.Or(err, refused)
}

// meant returns the request's filter and action.
func (v *visit) meant() (b bulkBody, err error) {
	b.Verb = v.r.FormValue("action")
	fits := verbs()[b.Verb]
	if fits == nil {
		return b, fmt.Errorf("%w: %q is nothing that can be done to many jobs", lokt.ErrInvalid, b.Verb)
	}
	b.All = v.r.FormValue("all") != ""
	b.Filter, err = v.filter()
	b.Which, b.Query = b.Filter.String(), query(&b.Filter).Encode()
	b.states = slices.DeleteFunc(jobs.States(), func(s jobs.State) bool {
		return !fits(s) || b.Filter.State != "" && jobs.State(b.Filter.State) != s
	})
	return b, cmp.Or(err, v.need(Submit))
}

// simple reports whether the filter is about no more than states and types.
func (b *bulkBody) simple() bool {
	return b.Filter == rows.Filter{State: b.Filter.State, Type: b.Filter.Type}
}

// counted is selected without the jobs. Where the store can count them, it does, and whether the person has the right to do
// it to each is found out afterwards.
func (d *Dashboard) counted(v *visit) (bulkBody, error) {
	b, err := v.meant()
	if err == nil && (b.Verb != retry || !b.simple()) {
		_, err = d.selected(v, &b)
		return b, err
	}
	for _, state := range b.states {
		if err == nil {
			var n int
			n, err = d.Jobs.CountEnded(v.r.Context(), state, b.Filter.Type)
			b.Count += n
		}
	}
	b.Count, b.More = min(b.Count, mostBulk), b.Count > mostBulk
	return b, err
}

// bulk counts, and asks.
func (d *Dashboard) bulk(v *visit) (*page, error) {
	b, err := d.counted(v)
	if err != nil {
		return nil, err
	}
	b.Key = rand.Text()
	line := "lokt job list"
	if which := flags(&b.Filter); which != "" {
		line = "lokt job " + b.Verb + which
	}
	return &page{Title: "Many jobs", Line: line, Body: b}, nil
}

// runs are the actions on many jobs that were started lately.
type runs struct {
	mu  sync.Mutex
	all map[string]*run
}

// of returns where the run of the form is that has the key, if it was sent already.
func (r *runs) of(key string) string {
	for _, one := range r.all {
		if one.key == key {
			return "/runs/" + one.ID
		}
	}
	return ""
}

// underWay returns those that have not ended, the first to begin first.
func (r *runs) underWay() []runBody {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []runBody{}
	for _, one := range r.all {
		if one.Ended.IsZero() {
			all = append(all, one.body())
		}
	}
	slices.SortFunc(all, func(a, b runBody) int { return a.Begins.Compare(b.Begins) })
	return all
}

// run is an action on many jobs. It lives in this process: if the process ends, so does the run, with what it has not
// done yet left undone.
type run struct {
	ID      string    `json:"id"`
	Verb    string    `json:"action"`
	Which   string    `json:"filter"`
	Who     string    `json:"who,omitzero"`
	Begins  time.Time `json:"begins"`
	Count   int       `json:"count"`
	Done    int       `json:"done"`
	Failed  int       `json:"failed"`
	Problem string    `json:"problem,omitzero"` // of the last that failed
	Undone  bool      `json:"undone,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`

	stop context.CancelFunc
	key  string // of its form
}

// startRun begins an action on many jobs, if the person has typed how many, and they are those that were counted.
func (d *Dashboard) startRun(v *visit) (string, error) {
	b, err := v.meant()
	if err != nil {
		return "", err
	}
	key := cmp.Or(v.r.PostFormValue("key"), rand.Text())
	d.runs.mu.Lock()
	at := d.runs.of(key)
	d.runs.mu.Unlock()
	if at != "" {
		return at, nil
	}
	ids, err := d.selected(v, &b)
	if err != nil {
		return "", err
	}
	if typed, err := strconv.Atoi(v.r.PostFormValue("confirm")); err != nil || typed != len(ids) {
		return "", fmt.Errorf("%w: it would now be for %d jobs, and %q was typed: nothing was done", lokt.ErrInvalid, len(ids), v.r.PostFormValue("confirm"))
	}
	if set := v.r.PostFormValue("set"); set != "" && set != b.Set {
		return "", fmt.Errorf("%w: it would now be for as many jobs, but for others than were counted: nothing was done", lokt.ErrInvalid)
	}
	d.runs.mu.Lock()
	defer d.runs.mu.Unlock()
	if at := d.runs.of(key); at != "" {
		return at, nil
	}
	for id, old := range d.runs.all {
		if !old.Ended.IsZero() && time.Since(old.Ended) > runKept {
			delete(d.runs.all, id)
		}
	}
	if len(d.runs.all) >= mostRuns {
		return "", fmt.Errorf("%w: %d such actions are under way or ended lately", lokt.ErrUnavailable, mostRuns)
	}
	ctx, stop := context.WithCancel(d.Stop)
	r := &run{ID: rand.Text(), key: key, stop: stop, Verb: b.Verb, Which: b.Which, Who: v.Who(), Begins: time.Now().Add(d.Undo), Count: len(ids)}
	d.runs.all[r.ID] = r
	go d.carryOut(ctx, r, ids, v.reason())
	return "/runs/" + r.ID, nil
}

// carryOut waits until the run can no longer be undone, and does it.
func (d *Dashboard) carryOut(ctx context.Context, r *run, ids []string, reason string) {
	defer r.stop()
	select {
	case <-time.After(time.Until(r.Begins)):
	case <-ctx.Done():
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			break
		}
		err := d.doOne(ctx, r, id, reason)
		d.runs.mu.Lock()
		if err == nil {
			r.Done++
		} else {
			r.Failed++
			r.Problem = err.Error()
		}
		d.runs.mu.Unlock()
	}
	d.runs.mu.Lock()
	r.Ended = time.Now()
	d.runs.mu.Unlock()
	d.Log.Info("dashboard", "action", r.Verb, "jobs", r.Which, "who", r.Who, "done", r.Done, "failed", r.Failed, "undone", r.Undone)
}

func (d *Dashboard) doOne(ctx context.Context, r *run, id, reason string) error {
	if r.Verb == "cancel" {
		_, err := d.Jobs.Cancel(ctx, id, reason)
		return err
	}
	j, err := d.Jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	if schedule(&j) {
		return fmt.Errorf("%s is a schedule, which begins again only by its ID: lokt job retry %[1]s", id)
	}
	spec := j.Job.Again()
	spec.IdempotencyKey = "dashboard-" + r.key + "-" + id // another daemon may have been sent the form too, or this one before a restart
	_, err = d.Jobs.Submit(ctx, []jobs.Spec{spec})
	return err
}

// schedule reports whether a job is one: such are meant only where their state or ID is given.
func schedule(j *jobs.View) bool { return j.Job.Extras().Cron != "" }

// run returns the run that the request names.
func (v *visit) run() (*run, error) {
	r := v.runs.all[v.r.PathValue("id")]
	if r == nil {
		return nil, fmt.Errorf("%w: this daemon knows of no such run. It ended some time ago, or with a restart, or is another daemon's: "+
			"the list of jobs says what was done", errNoPage)
	}
	return r, nil
}

// runBody is a run at one moment.
type runBody struct {
	run
	CanUndo bool `json:"can_undo"`
}

func (r *run) body() runBody { return runBody{*r, r.Ended.IsZero() && time.Now().Before(r.Begins)} }

func (d *Dashboard) showRun(v *visit) (*page, error) {
	d.runs.mu.Lock()
	defer d.runs.mu.Unlock()
	r, err := v.run()
	if err != nil {
		return nil, err
	}
	return &page{Title: "Many jobs", Line: "lokt job list", Body: r.body()}, nil
}

// undoRun stops a run that has not begun.
func (d *Dashboard) undoRun(v *visit) (string, error) {
	if err := v.need(Submit); err != nil {
		return "", err
	}
	d.runs.mu.Lock()
	defer d.runs.mu.Unlock()
	r, err := v.run()
	if err != nil {
		return "", err
	}
	if !r.Undone && time.Now().After(r.Begins) {
		return "", fmt.Errorf("%w: it has begun, %d of %d are done", lokt.ErrInvalid, r.Done, r.Count)
	}
	r.Undone = true
	r.stop()
	return "/runs/" + r.ID, nil
}
