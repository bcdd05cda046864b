package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/rows"
	"github.com/lokt-dev/lokt/jobs"
)

// What can be looked at.
const (
	locksView   = "locks"
	jobsView    = "jobs"
	workersView = "workers"
)

func views() []string { return []string{locksView, jobsView, workersView} }

// columns returns the heads of a view's columns.
func columns(view string) []string {
	switch view {
	case jobsView:
		return []string{"JOB", "TYPE", "STATE", "WORKER", "ATTEMPT", "AGE", "CHANGED", "NOTE"}
	case workersView:
		return []string{"WORKER", "LEASES", "SEEN"}
	}
	return []string{"LOCK", "STATE", "HOLDER", "HELD", "PLACES", "WAITING", "LONGEST", "TOKEN", "NOTE"}
}

// row is a lock, a job or a worker.
type row struct {
	key, state string
	cells      []cell
	text       string // the same as a sentence, without what changes with every second
	gone       *row   // the row in its last state, if it is worth a line that it is not there any more
	value      any    // for programs
	frozen     bool   // of a job: its type is
}

// cell has what to sort by beside its text, if that is a number.
type cell struct {
	text   string
	number int64
}

// mostText is the most of a text that is looked at, in bytes: no terminal is wider.
const mostText = 2000

// cut shortens a text, wherever it came from.
func cut(text string) string {
	return rows.Cut(text, mostText)
}

func text(s string) cell { return cell{text: s} }

// count is a number, of which none is not shown.
func count(n int) cell {
	if n == 0 {
		return cell{}
	}
	return cell{strconv.Itoa(n), int64(n)}
}

// since is the time that has passed.
func since(t, now time.Time) cell {
	if t.IsZero() {
		return cell{}
	}
	d := now.Sub(t)
	if d >= time.Second {
		d = d.Truncate(time.Second)
	}
	return cell{app.Short(d), int64(max(d, 1))}
}

// source is where locks and jobs are, and who looks.
type source struct {
	*app.App
	b    *app.Backend
	jobs jobs.Service // nil with files
}

// shot is what was seen in one look.
type shot struct {
	view   string
	rows   []row
	sum    string   // a line about all of them
	detail []string // of the row that was asked for
	err    error
}

// Bounds of a look: how long it may take, and how many jobs it shows.
const (
	lookTimeout = 15 * time.Second
	mostJobs    = 500
)

// look reads what the view shows, and the details of one row unless key is empty.
func (s *source) look(ctx context.Context, view, key string) shot {
	ctx, stop := context.WithTimeout(ctx, lookTimeout)
	defer stop()
	seen := shot{view: view}
	look := s.lookAtLocks
	switch {
	case view == locksView:
	case s.jobs == nil:
		seen.sum = "jobs are kept by a server: name one with LOKT_SERVER or --server"
		return seen
	case view == jobsView:
		look = s.lookAtJobs
	default:
		look = s.lookAtWorkers
	}
	if seen.err = look(ctx, &seen); seen.err == nil && key != "" {
		seen.detail, seen.err = s.details(ctx, view, key)
	}
	return seen
}

func (s *source) lookAtLocks(ctx context.Context, seen *shot) error {
	b, err := rows.Locks(ctx, s.b)
	now := b.Now
	states := map[string]int{}
	for i := range b.Locks {
		l := &b.Locks[i]
		states[l.State]++
		places := ""
		if l.Limit != "" && l.Limit != "1" {
			places = fmt.Sprintf("%d/%s", l.Holders, l.Limit)
		}
		holder, said := l.Holder, l.Name+" is "+l.State
		if l.Holders > 1 {
			holder += fmt.Sprintf(" +%d", l.Holders-1)
		}
		switch {
		case l.State == rows.Held:
			said += " by " + holder
		case l.Holder != "":
			said += ", held by " + holder
		}
		if l.Waiting > 0 {
			said += fmt.Sprintf(", %d waiting", l.Waiting)
		}
		if l.Why != "" {
			said += ": " + l.Why
		}
		seen.rows = append(seen.rows, row{
			key: l.Name, state: l.State, text: said, value: l,
			gone: &row{text: l.Name + " is free", value: rows.Lock{Name: l.Name, State: "free", Token: l.Token}},
			cells: []cell{
				text(l.Name), text(l.State), text(holder), since(l.Since, now), text(places), count(l.Waiting), since(l.Oldest, now),
				count(int(l.Token)), text(l.Why), //nolint:gosec // tokens are far from that
			},
		})
	}
	for _, state := range rows.States() {
		if n := states[state]; n > 0 {
			seen.sum += fmt.Sprintf("%d %s  ", n, state)
		}
	}
	seen.sum = cmp.Or(strings.TrimSpace(seen.sum), "nobody holds or waits for a lock")
	if len(b.Circle) > 0 {
		seen.sum = "a circle: " + rows.CircleText(b.Circle)
	}
	return err
}

func (s *source) lookAtJobs(ctx context.Context, seen *shot) error {
	status, err := s.jobs.Status(ctx)
	if err != nil {
		return err
	}
	seen.sum = fmt.Sprintf("%d queued  %d with workers  %d of %d units in use", status.Queue.Sum(), status.ActiveLeases, status.Leased, status.Usable)
	holder := rows.Holders(ctx, s.b, func(string) bool { return true })
	next, _, err := rows.Find(ctx, s.jobs, &rows.Filter{}, "", func(v *jobs.View) bool {
		j := rows.OfJob(v, holder)
		now := j.Created.Add(v.Age) // of the server
		note := j.Note()
		said := fmt.Sprintf("%s (%s) is %s", j.ID, j.Type, j.State)
		if j.Worker != "" {
			said += " on " + j.Worker
		}
		if note != "" {
			said += ": " + note
		}
		seen.rows = append(seen.rows, row{
			key: j.ID, state: string(j.State), text: said, value: j, frozen: v.WaitingFor == jobs.WaitingFrozen,
			cells: []cell{
				text(j.ID), text(j.Type), text(string(j.State)), text(j.Worker), {fmt.Sprintf("%d/%d", j.Attempt, j.Attempts), int64(j.Attempt)},
				since(j.Created, now), since(j.Updated, now), text(note),
			},
		})
		return len(seen.rows) < mostJobs
	})
	if next != "" {
		seen.sum += fmt.Sprintf("  (the %d that changed last)", len(seen.rows))
	}
	return err
}

func (s *source) lookAtWorkers(ctx context.Context, seen *shot) error {
	all, err := s.jobs.Workers(ctx)
	for _, w := range all {
		seen.rows = append(seen.rows, row{
			key: w.ID, text: fmt.Sprintf("%s has %d leases", w.ID, w.Leases), value: w,
			gone:  &row{text: w.ID + " is gone", value: jobs.WorkerStatus{ID: w.ID, LastSeen: w.LastSeen}},
			cells: []cell{text(w.ID), {strconv.Itoa(w.Leases), int64(w.Leases)}, since(w.LastSeen, time.Now())},
		})
	}
	seen.sum = fmt.Sprintf("%d workers", len(all))
	return err
}

// details returns all there is to know about a row.
func (s *source) details(ctx context.Context, view, key string) ([]string, error) {
	switch view {
	case locksView:
		snap, err := s.b.Get(ctx, key)
		if errors.Is(err, lokt.ErrDamaged) {
			return []string{s.Repairable(err, key).Error()}, nil
		}
		return lockDetails(&snap), err
	case jobsView:
		v, err := s.jobs.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		doc, err := httpapi.JobDocument(&v)
		if err != nil {
			return nil, err
		}
		all, err := app.DetailsOf(doc)
		return strings.Split(strings.TrimSpace(all), "\n"), err
	}
	var lines []string
	_, _, err := rows.Find(ctx, s.jobs, &rows.Filter{Worker: key}, "", func(v *jobs.View) bool {
		lines = append(lines, fmt.Sprintf("%s  %s  %s", v.Job.ID, v.Job.State, v.Job.Type))
		return len(lines) < mostJobs
	})
	if len(lines) == 0 {
		lines = []string{"it has no job"}
	}
	return lines, err
}

// lockDetails tells who has a lock and who waits for it.
func lockDetails(s *lokt.Snapshot) []string {
	l := rows.OfLock(*s)
	lines := []string{fmt.Sprintf("last token %d", l.Token)}
	if l.Why != "" {
		lines = append(lines, l.State+": "+l.Why)
	}
	if f := s.Frozen(); f != nil && f.Damaged == "" {
		line := fmt.Sprintf("frozen by %s %s ago", f.Owner, since(f.At, s.Now).text)
		if !f.ExpiresAt.IsZero() {
			line += ", for another " + app.Short(f.ExpiresAt.Sub(s.Now))
		}
		lines = append(lines, line)
	}
	lines = append(lines, "", fmt.Sprintf("Holders: %d", len(s.Lock.Holders)))
	for i := range s.Lock.Holders {
		h := &s.Lock.Holders[i]
		line := fmt.Sprintf("  %s  %s for %s, token %d", h.Owner, h.Kind(), since(h.HeldSince, s.Now).text, h.Token)
		if h.Owner.Process.PID != 0 {
			line += fmt.Sprintf(", pid %d", h.Owner.Process.PID)
		}
		if h.TTL > 0 {
			line += fmt.Sprintf(", renewed %s ago, ttl %s", since(h.AcquiredAt, s.Now).text, app.Short(h.TTL))
		}
		switch reason, stale := s.Stale(*h); {
		case stale:
			line += ", stale: " + reason
		case h.Yield != nil:
			line += ", asked to leave for " + h.Yield.To.String()
		case rows.Late(s.Now, h):
			line += ", " + rows.Overdue
		}
		lines = append(lines, line)
		if h.Owner.Session != "" {
			lines = append(lines, "    session "+h.Owner.Session)
		}
		for _, key := range slices.Sorted(maps.Keys(h.Metadata)) {
			lines = append(lines, "    "+key+" "+h.Metadata[key])
		}
		for _, m := range h.Messages {
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("    %s: %s: %s", m.From, m.Text, m.Answer), ": "))
		}
	}
	lines = append(lines, "", fmt.Sprintf("Queue: %d", len(s.Lock.Queue)))
	for i, w := range s.Lock.Queue {
		line := fmt.Sprintf("  %d. %s for %s", i+1, w.Owner, since(w.Since, s.Now).text)
		if w.Priority != 0 {
			line += fmt.Sprintf(", priority %d", w.Priority)
		}
		if s.Away(w) {
			line += ", away: passed over until it asks again"
		}
		lines = append(lines, line)
	}
	return lines
}

func (s *source) unlock(ctx context.Context, name string, upTo uint64) (string, error) {
	if s.Agent() {
		return "", errors.New("to end what others hold is for a person to do")
	}
	if _, err := s.b.Get(ctx, name); err != nil { // a record that cannot be read would be discarded
		return "", s.Repairable(err, name)
	}
	ended, err := s.b.Release(ctx, lokt.Target{Name: name, Owner: s.Asker(), Force: true, UpTo: upTo})
	return fmt.Sprintf("ended %d holds of %s", len(ended), name), s.Repairable(err, name)
}

func (s *source) freeze(ctx context.Context, name string, d time.Duration, reason string) (string, error) {
	f, err := s.b.Freeze(ctx, name, lokt.Freeze{ID: lokt.NewLeaseID(), Owner: s.Asker(), Reason: reason, TTL: d})
	return fmt.Sprintf("froze %s for %s", name, app.Short(f.TTL)), s.Repairable(err, name)
}

func (s *source) unfreeze(ctx context.Context, name, id string) (string, error) {
	_, err := s.b.Unfreeze(ctx, lokt.Target{Name: name, LeaseID: id, Owner: s.Asker(), Force: !s.Agent()})
	return "unfroze " + name, s.Repairable(err, name)
}

func (s *source) freezeType(ctx context.Context, jobType string, frozen bool) (string, error) {
	if frozen {
		return "froze jobs of type " + jobType, s.jobs.Freeze(ctx, jobType)
	}
	return "unfroze jobs of type " + jobType, s.jobs.Unfreeze(ctx, jobType)
}
