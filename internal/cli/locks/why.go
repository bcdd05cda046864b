package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/foreign"
	"github.com/lokt-dev/lokt/jobs"
)

// Types of reasons: what why finds.
const (
	whyFrozen     = "frozen"
	whyHeld       = "held"
	whySelfHeld   = "self_held"
	whyExpired    = "expired"
	whyDead       = "dead_pid"
	whyStale      = "stale" // over for another reason than time or death
	whyCorrupted  = "corrupted"
	whyUnreadable = "unreadable"
	whyQueued     = "queued"
	whyPressure   = "pressure" // of the machine: it would not start now
	whyRule       = "rule"     // for turns, of lokt.toml
)

// whyMost is how many holds, and how many suggestions, people are told.
const whyMost = 20

// whyJSON is how the verdict is told to programs.
type whyJSON struct {
	Name        string    `json:"name"`
	Status      string    `json:"status"` // free or blocked, as lokt lock NAME would find now
	Reasons     []reason  `json:"reasons"`
	Suggestions []string  `json:"suggestions"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"` // when what is in the way ends by itself, if all of it does
}

// reason is one thing that is in the way, or that only looks so.
type reason struct {
	Type     string `json:"type"`
	Blocking bool   `json:"blocking"`
	Message  string `json:"message"`
	party
	Reason string `json:"reason,omitzero"` // that was given for a freeze
	Count  int    `json:"count,omitzero"`  // of waiters
	Away   int    `json:"away,omitzero"`   // of these, those that are passed over until they ask again
	Detail string `json:"detail,omitzero"` // what is wrong with a record
}

type whyOptions struct {
	share
	guard bool
	file  string
	rule  func(context.Context, lokt.Service, string) (Turn, error)
	turn  Turn
}

// Turn is what rules say of the next turn of a lock.
type Turn struct {
	Rule  string    // in words; empty if there is none
	Kept  string    // why a guard does not begin yet; empty if it may
	Until time.Time // when it may, if Kept
	Mark  string    // the lock that remembers why
	Waits bool      // a guard may wait for that
}

func newWhy(a cmd) *cobra.Command { return Why(a.App, nil) }

// Why builds the command that tells what rule says of a lock, or the one that becomes that if rule is nil and there are rules.
func Why(shared *app.App, rule func(context.Context, lokt.Service, string) (Turn, error)) *cobra.Command {
	a := cmd{shared}
	o := whyOptions{rule: rule}
	cmd := a.Named("why", func(cmd *cobra.Command, b *app.Backend, name string) error {
		if rule == nil && a.ruled() {
			return a.HandOver("lokt-agent", a.Words)
		}
		return a.runWhy(cmd.Context(), b, name, o)
	})
	named := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.file != "" {
			return a.runWhyFile(o.file)
		}
		return named(cmd, args)
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case o.file == "":
			return app.OneName(cmd, args)
		case o.guard || o.shareFlags() != nil:
			return app.Usagef("--file is about a lock of another program, and the other flags are about claims of lokt's")
		}
		return app.NoArgs(cmd, args)
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return o.check(cmd) }
	o.bind(cmd)
	o.pressure.Bind(cmd)
	cmd.Flags().StringVar(&o.file, "file", "", "tell who has another program's lock, by its file: `PATH`")
	cmd.Flags().BoolVar(&o.guard, "guard", false, "answer for lokt guard, which no hold of one's own lets in")
	return cmd
}

func (a cmd) runWhy(ctx context.Context, b *app.Backend, name string, o whyOptions) error {
	v := whyJSON{
		Name: name, Status: "blocked", Suggestions: []string{a.Remove(name)},
		Reasons: []reason{{Type: whyUnreadable, Blocking: true, Message: "its record cannot be read, so nobody gets it"}},
	}
	s, err := b.Get(ctx, name)
	if err == nil && o.rule != nil {
		if o.turn, err = o.rule(ctx, b, name); err != nil {
			return err // which names the lock that it is about
		}
	}
	if err == nil {
		v, err = a.explain(b, s, o)
	}
	if errors.Is(err, lokt.ErrDamaged) {
		v.Reasons[0].Detail = err.Error()
	} else if err != nil {
		return err
	}
	end := app.Exit(map[string]int{"free": app.ExitOK, "blocked": app.ExitBlocked}[v.Status])
	switch {
	case a.JSON:
		return errors.Join(a.Print(v), end)
	case len(v.Reasons) == 0:
		a.Say("%s is free", name)
		return end
	}
	a.Say("%s is %s:", name, map[string]string{"free": "to be had", "blocked": "blocked"}[v.Status])
	left := 0
	for i, r := range v.Reasons {
		if i >= whyMost && r.LockID != "" && r.Type != whyQueued { // another hold
			left++
			continue
		}
		a.Say("  - %s%s", r.Message, strings.TrimSuffix(" ("+r.Detail+")", " ()"))
	}
	if left > 0 {
		a.Say("  - and %d more hold it: %s", left, a.CommandLine("status", name))
	}
	a.Say("what you can do:")
	for _, line := range v.Suggestions[:min(len(v.Suggestions), whyMost)] {
		if strings.Contains(line, " --force") {
			line += "   # if you know that nobody relies on it"
		}
		a.Say("  %s", line)
	}
	return end
}

func (a cmd) runWhyFile(path string) error {
	r, err := foreign.Look(path)
	if err == nil {
		err = a.Answer(r, "%s", r)
	}
	if err == nil && r.Status != foreign.Free {
		err = app.Exit(app.ExitBlocked)
	}
	return err
}

// explain asks the rules what they would answer to such a claim, and says why.
func (a cmd) explain(b *app.Backend, s lokt.Snapshot, o whyOptions) (whyJSON, error) {
	name, by := s.Lock.Name, a.Asker()
	v := whyJSON{Name: name, Status: "free", Reasons: []reason{}, Suggestions: []string{}}
	var blocked *lokt.BlockedError
	err := s.WouldGrant(lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Owner: by, Refresh: !o.guard, Strict: o.guard, Limit: o.limit(), Weight: o.weight})
	if err != nil && !errors.As(err, &blocked) {
		return v, err
	}
	var force []string // comes last: it takes from others what they may rely on
	suggest := func(command string, flags ...string) {
		list := &v.Suggestions
		if slices.Contains(flags, "--force") {
			list = &force
		}
		if line := a.CommandLine(command, name, flags...); !slices.Contains(*list, line) {
			*list = append(*list, line)
		}
	}
	take := func(flags ...string) {
		flags = append(o.shareFlags(), flags...)
		if o.guard {
			v.Suggestions = append(v.Suggestions, a.CommandLine("guard", name, flags...)+" -- COMMAND")
		} else {
			suggest("lock", flags...)
		}
	}
	above, _ := o.pressure.Above(s, math.MaxUint64)
	if above != "" {
		v.Reasons = append(v.Reasons, reason{Type: whyPressure, Blocking: true, Message: above + ": nobody starts beside those who hold it"})
	}
	kept := o.guard && o.turn.Kept != ""
	switch {
	case blocked != nil:
		v.Status = "blocked"
		v.ExpiresAt = allOver(blocked)
		if blocked.Freeze == nil || blocked.Freeze.Damaged == "" { // which no waiting ends
			take("--wait")
		}
	case above != "":
		v.Status = "blocked"
		take("--wait")
	case !kept:
		take()
	case o.turn.Waits:
		take("--wait")
	}
	if kept {
		if v.Status == "free" || !v.ExpiresAt.IsZero() && v.ExpiresAt.Before(o.turn.Until) {
			v.ExpiresAt = o.turn.Until.UTC()
		}
		v.Status = "blocked"
		v.Suggestions = append(v.Suggestions, a.CommandLine("status", o.turn.Mark))
	}
	if f := s.Frozen(); f != nil {
		v.Reasons = append(v.Reasons, frozenReason(b, f, s.Now, blocked != nil && blocked.Freeze != nil))
		if f.Damaged != "" || !by.Same(f.Owner) {
			suggest("unfreeze", "--force")
		} else {
			suggest("unfreeze")
		}
	}
	for _, h := range s.Lock.Holders {
		inTheWay := blocked != nil && slices.ContainsFunc(blocked.Holders, func(o lokt.Holder) bool { return o.LeaseID == h.LeaseID })
		r := heldReason(b, s, h, by.Same(h.Owner))
		r.Blocking = inTheWay
		v.Reasons = append(v.Reasons, r)
		switch {
		case r.Type == whyExpired || r.Type == whyDead || r.Type == whyStale:
			suggest("unlock", "--break-stale")
		case r.Type == whySelfHeld && !h.Strict:
			suggest("unlock")
		case inTheWay && h.LeaseID != "" && h.ExpiresAt.IsZero() && r.PIDStatus != pidAlive: // it might stay for good
			suggest("unlock", "--force", "--id", r.LockID)
		}
	}
	if s.Lock.Corrupt != "" {
		v.Reasons = append(v.Reasons, reason{
			Type: whyCorrupted, Message: "its record is damaged: whoever locks it next takes it over", Detail: s.Lock.Corrupt,
		})
		suggest("unlock", "--force")
	}
	if r, any := queuedReason(b, s, blocked); any {
		v.Reasons = append(v.Reasons, r)
	}
	if t := o.turn; t.Rule != "" {
		r := reason{Type: whyRule, Message: t.Rule}
		if t.Kept != "" {
			r.Blocking, r.ExpiresAt, r.Remaining = kept, t.Until.UTC(), app.Remaining(s.Now, t.Until)
			r.Message += fmt.Sprintf("; %s: not for another %s", t.Kept, app.Short(t.Until.Sub(s.Now)))
		}
		v.Reasons = append(v.Reasons, r)
	}
	if blocked != nil {
		suggest("status")
	}
	if !a.Agent() { // whom lokt prime tells not to
		v.Suggestions = append(v.Suggestions, force...)
	}
	return v, nil
}

func frozenReason(b *app.Backend, f *lokt.Freeze, now time.Time, blocking bool) reason {
	if f.Damaged != "" {
		return reason{Type: whyFrozen, Blocking: blocking, Message: "it is frozen by a record that cannot be read", Detail: f.Damaged}
	}
	v := viewFreeze(b, f, now)
	return reason{Type: whyFrozen, Blocking: blocking, Message: "it is frozen by " + freezeText(f, now), party: v.party, Reason: v.Reason}
}

// heldReason describes a hold: whose it is, or why it is over.
func heldReason(b *app.Backend, s lokt.Snapshot, h lokt.Holder, own bool) reason {
	v := viewHold(b, s, h)
	r := reason{party: v.party}
	who := holderText(b, h, s.Now)
	switch {
	case v.State == lokt.ReasonExpired:
		r.Type, r.Message = whyExpired, "it was held, until it expired, by "+who
	case v.State == lokt.ReasonDead:
		r.Type, r.Message = whyDead, "it was held, by a process that is dead, by "+who
	case v.State != StateHeld:
		r.Type, r.Message = whyStale, fmt.Sprintf("it was held (%s) by %s", v.State, who)
	case own && h.Strict:
		r.Type, r.Message = whySelfHeld, "you hold it: "+who+"; a lease of yours may join it, but another guard waits for its end"
	case own:
		r.Type, r.Message = whySelfHeld, "you hold it: "+who
	default:
		r.Type, r.Message = whyHeld, "it is held by "+who
	}
	for _, m := range h.Messages {
		r.Message += fmt.Sprintf("; %s: %q", m.From, app.OneLine(m.Text)) + strings.TrimSuffix(fmt.Sprintf(", answer: %q", app.OneLine(m.Answer)), `, answer: ""`)
	}
	if b.Far != nil && v.State == StateHeld {
		r.Detail = farDetail(b, h)
	}
	return r
}

// farDetail says what ends a hold on a server, which sees neither processes nor hosts.
func farDetail(b *app.Backend, h lokt.Holder) string {
	host := cmp.Or(h.Owner.Host, "its host")
	switch ends := ofJob(h); {
	case ends != "":
		return ends
	case h.ExpiresAt.IsZero():
		return "only unlocking it ends it, whatever becomes of " + host
	case h.Strict && pidStatus(b, h) == pidDead:
		return "its guard is dead, which the server cannot know: it ends by expiring"
	case h.Strict:
		return fmt.Sprintf("its guard on %s renews it while its command runs; if the guard or %[1]s dies, it expires", host)
	}
	return ""
}

// ofJob says what ends the hold of a job, and nothing of others.
func ofJob(h lokt.Holder) string {
	job, is := strings.CutPrefix(h.Owner.ID, jobs.OwnerPrefix)
	switch {
	case !is || h.Owner.Host != "":
		return ""
	case !h.Strict:
		return "it is kept for the job, which is next; see: lokt job show " + app.OneLine(job)
	}
	return "it is released when the job ends; see: lokt job show " + app.OneLine(job)
}

// queuedReason describes the waiters, if there are any.
func queuedReason(b *app.Backend, s lokt.Snapshot, blocked *lokt.BlockedError) (reason, bool) {
	queue := waiting(s)
	if len(queue) == 0 {
		return reason{}, false
	}
	gone := away(s, queue)
	here := slices.DeleteFunc(slices.Clone(queue), s.Away)
	w := append(here, queue...)[0] // the first who is there, if there is one
	r := reason{
		Type: whyQueued, Count: len(queue), Away: len(gone), party: viewClaim(b, s.Now, w.Claim, w.Since, time.Time{}),
		Message: fmt.Sprintf("%s waits for it already", w.Owner),
	}
	if n := len(here) - 1; n > 0 {
		r.Message += fmt.Sprintf(", and %d more", n)
	}
	switch {
	case len(gone) > 1:
		r.Detail = fmt.Sprintf("%d of those who wait are away: they are passed over until they ask again", len(gone))
	case len(gone) == 1 && len(here) > 0:
		r.Detail = fmt.Sprintf("%s, who waits too, is %s", gone[0].Owner, awayUntil(*app.Remaining(s.Now, gone[0].Until)))
	case len(gone) == 1:
		r.Detail = "but is " + awayUntil(*app.Remaining(s.Now, gone[0].Until))
	}
	// A waiter whose turn it is counts as a holder to the rules, though it has not been told yet.
	r.Blocking = blocked != nil && (len(blocked.Ahead) > 0 ||
		slices.ContainsFunc(blocked.Holders, func(h lokt.Holder) bool { _, in := s.Lock.Holder(h.LeaseID); return !in }))
	return r, true
}

// allOver returns when the last of what is in the way ends by itself, or zero if some of it does not.
func allOver(e *lokt.BlockedError) (last time.Time) {
	var ends []time.Time
	if e.Freeze != nil {
		ends = append(ends, e.Freeze.ExpiresAt)
	}
	for _, h := range e.Holders {
		ends = append(ends, h.ExpiresAt)
	}
	slices.SortFunc(ends, time.Time.Compare)
	if len(ends) == 0 || ends[0].IsZero() {
		return time.Time{}
	}
	return ends[len(ends)-1].UTC()
}
