package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
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
)

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
	Type      string    `json:"type"`
	Blocking  bool      `json:"blocking"`
	Message   string    `json:"message"`
	LockID    string    `json:"lock_id,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	Host      string    `json:"host,omitempty"`
	PID       int       `json:"pid,omitempty"`
	AgentID   string    `json:"agent_id,omitempty"`
	Kind      string    `json:"kind,omitempty"`
	PIDStatus string    `json:"pid_status,omitempty"`
	AgeSec    int64     `json:"age_sec,omitempty"`
	TTLSec    int64     `json:"ttl_sec,omitempty"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Reason    string    `json:"reason,omitempty"` // that was given for a freeze
	Count     int       `json:"count,omitempty"`  // of waiters
	Away      int       `json:"away,omitempty"`   // of these, those that are passed over until they ask again
	Detail    string    `json:"detail,omitempty"` // what is wrong with a record
}

func newWhy(a cmd) *cobra.Command {
	return &cobra.Command{
		Use:   "why NAME",
		Short: "Explain who or what is in the way of taking a lock",
		Long: "Tell whether lokt lock NAME would get the lock now, by the very rules that it goes by, who or what is in the way\n" +
			"if not, and what can be done about it. Ends with 0 if it would, with 2 if it would not.",
		Example:           "  lokt why deploy",
		Args:              app.OneName,
		ValidArgsFunction: a.CompleteNames,
		RunE:              func(_ *cobra.Command, args []string) error { return a.runWhy(args[0]) },
	}
}

func (a cmd) runWhy(name string) error {
	if err := app.ValidNames(name); err != nil {
		return err
	}
	b, err := a.Backend()
	if err != nil {
		return err
	}
	v := whyJSON{Name: name, Status: "free"}
	s, err := b.Get(context.Background(), name)
	if errors.Is(err, lokt.ErrDamaged) {
		v.Status = "blocked"
		v.Reasons = []reason{{Type: whyUnreadable, Blocking: true, Message: "its record cannot be read, so nobody gets it", Detail: err.Error()}}
		v.Suggestions = []string{a.CommandLine("unlock", name, "--force")}
	} else if err != nil {
		return err
	} else if v, err = a.explain(b, s); err != nil {
		return err
	}
	code := app.ExitOK
	if v.Status == "blocked" {
		code = app.ExitBlocked
	}
	if a.JSON {
		return errors.Join(a.Print(v), app.Exit(code))
	}
	if len(v.Reasons) == 0 {
		a.Say("%s is free", name)
		return app.Exit(code)
	}
	a.Say("%s is %s:", name, map[string]string{"free": "to be had", "blocked": "blocked"}[v.Status])
	for _, r := range v.Reasons {
		line := r.Message
		if r.Detail != "" {
			line += " (" + r.Detail + ")"
		}
		a.Say("  - %s", line)
	}
	a.Say("what you can do:")
	for _, line := range v.Suggestions {
		if strings.Contains(line, " --force") {
			line += "   # if you know that nobody relies on it"
		}
		a.Say("  %s", line)
	}
	return app.Exit(code)
}

// explain asks the rules what they would answer to lokt lock NAME, and says why.
func (a cmd) explain(b *app.Backend, s lokt.Snapshot) (whyJSON, error) {
	name, by := s.Lock.Name, a.Asker()
	v := whyJSON{Name: name, Status: "free", Reasons: []reason{}, Suggestions: []string{}}
	var blocked *lokt.BlockedError
	err := s.WouldGrant(lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Owner: by, Refresh: true, Limit: lokt.Exclusive})
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
	if blocked == nil {
		suggest("lock")
	} else {
		v.Status = "blocked"
		v.ExpiresAt = allOver(blocked)
		if blocked.Freeze == nil || blocked.Freeze.Damaged == "" { // which no waiting ends
			suggest("lock", "--wait")
		}
	}
	if f := s.Frozen(); f != nil {
		v.Reasons = append(v.Reasons, frozenReason(f, s.Now, blocked != nil && blocked.Freeze != nil))
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
	if blocked != nil {
		suggest("status")
	}
	v.Suggestions = append(v.Suggestions, force...)
	return v, nil
}

func frozenReason(f *lokt.Freeze, now time.Time, blocking bool) reason {
	r := reason{Type: whyFrozen, Blocking: blocking, Detail: f.Damaged}
	if f.Damaged != "" {
		r.Message = "it is frozen by a record that cannot be read"
		return r
	}
	r.Message = "it is frozen by " + freezeText(f, now)
	r.LockID, r.Owner, r.Host, r.PID, r.AgentID, r.Reason = f.ID, f.Owner.ID, f.Owner.Host, f.Owner.Process.PID, f.Owner.Session, f.Reason
	r.AgeSec, r.TTLSec = app.Age(now, f.At), app.Seconds(f.TTL)
	if !f.ExpiresAt.IsZero() {
		r.ExpiresAt = app.UTC(f.ExpiresAt)
	}
	return r
}

// heldReason describes a hold: whose it is, or why it is over.
func heldReason(b *app.Backend, s lokt.Snapshot, h lokt.Holder, own bool) reason {
	v := viewHold(b, s, h)
	r := reason{
		Type: whyHeld, LockID: v.LockID, Owner: v.Owner, Host: v.Host, PID: v.PID, AgentID: v.AgentID, Kind: v.Kind,
		PIDStatus: v.PIDStatus, AgeSec: v.AgeSec, TTLSec: v.TTLSec, ExpiresAt: v.ExpiresAt,
	}
	who := holderText(b, h, s.Now)
	switch v.State {
	case StateHeld:
		r.Message = "it is held by " + who
	case lokt.ReasonExpired:
		r.Type, r.Message = whyExpired, "it was held, until it expired, by "+who
	case lokt.ReasonDead:
		r.Type, r.Message = whyDead, "it was held, by a process that is dead, by "+who
	default:
		r.Type, r.Message = whyStale, fmt.Sprintf("it was held (%s) by %s", v.State, who)
	}
	if b.Far != nil && v.State == StateHeld {
		r.Detail = farDetail(b, h)
	}
	if v.State == StateHeld && own {
		r.Type, r.Message = whySelfHeld, "you hold it: "+who
		if h.Strict {
			r.Message += "; a lease of yours may join it, but another guard waits for its end"
		}
	}
	return r
}

// farDetail says what ends a hold on a server, which sees neither processes nor hosts.
func farDetail(b *app.Backend, h lokt.Holder) string {
	switch {
	case h.ExpiresAt.IsZero():
		return "only unlocking it ends it, whatever becomes of " + cmp.Or(h.Owner.Host, "its host")
	case h.Strict && pidStatus(b, h) == pidDead:
		return "its guard is dead, which the server cannot know: it ends by expiring"
	case h.Strict:
		return fmt.Sprintf("its guard on %s renews it while its command runs; if the guard or %[1]s dies, it expires", cmp.Or(h.Owner.Host, "its host"))
	}
	return ""
}

// queuedReason describes who waits already, if anybody does.
func queuedReason(b *app.Backend, s lokt.Snapshot, blocked *lokt.BlockedError) (reason, bool) {
	queue := waiting(s)
	if len(queue) == 0 {
		return reason{}, false
	}
	gone := away(s, queue)
	here := slices.DeleteFunc(slices.Clone(queue), s.Away)
	w := append(here, queue...)[0] // the first who is there, if there is one
	r := reason{
		Type: whyQueued, Count: len(queue), Away: len(gone), LockID: b.Shown(w.LeaseID), Owner: w.Owner.ID, Host: w.Owner.Host, PID: w.Owner.Process.PID,
		AgentID: w.Owner.Session, Kind: w.Kind(), AgeSec: app.Age(s.Now, w.Since),
		Message: fmt.Sprintf("%s waits for it already", w.Owner),
	}
	if n := len(here) - 1; n > 0 {
		r.Message += fmt.Sprintf(", and %d more", n)
	}
	switch leaves := func() int64 { return *app.Remaining(s.Now, gone[0].Until) }; {
	case len(gone) > 1:
		r.Detail = fmt.Sprintf("%d of those who wait are away: they are passed over until they ask again", len(gone))
	case len(gone) == 1 && len(here) > 0:
		r.Detail = fmt.Sprintf("%s, who waits too, is %s", gone[0].Owner, awayUntil(leaves()))
	case len(gone) == 1:
		r.Detail = "but is " + awayUntil(leaves())
	}
	// A waiter whose turn it is counts as a holder to the rules, though it has not been told yet.
	r.Blocking = blocked != nil && (len(blocked.Ahead) > 0 ||
		slices.ContainsFunc(blocked.Holders, func(h lokt.Holder) bool { _, in := s.Lock.Holder(h.LeaseID); return !in }))
	return r, true
}

// allOver returns when the last of what is in the way ends by itself, or zero if some of it does not.
func allOver(e *lokt.BlockedError) time.Time {
	var last time.Time
	ends := make([]time.Time, 0, len(e.Holders)+1)
	if e.Freeze != nil {
		ends = append(ends, e.Freeze.ExpiresAt)
	}
	for _, h := range e.Holders {
		ends = append(ends, h.ExpiresAt)
	}
	for _, t := range ends {
		if t.IsZero() {
			return time.Time{}
		}
		if t.After(last) {
			last = t.UTC()
		}
	}
	return last
}
