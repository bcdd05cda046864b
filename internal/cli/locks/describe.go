package locks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/process"
)

// Values of pid_status.
const (
	pidAlive   = "alive"
	pidDead    = "dead"
	pidUnknown = "unknown"
	pidUnbound = "unbound" // the hold does not depend on a process

	// The process is gone, and so is the command that it ran, but something that the command started has inherited
	// what proves that the hold lives.
	pidOrphaned = "orphaned"
)

// pidStatus tells whether the process that the hold depends on lives.
func pidStatus(b *app.Backend, h lokt.Holder) string {
	switch {
	case b.Store == nil && h.Strict:
		return guardStatus(b, h)
	case h.Process == nil:
		return pidUnbound
	case b.Store == nil:
		return pidUnknown
	}
	status := b.Store.State(h).String()
	if status == pidAlive && orphaned(b, h) {
		return pidOrphaned
	}
	return status
}

// guardStatus tells whether the guard of a hold on a server lives, as far as this host can tell. The server itself goes by
// heartbeats alone.
func guardStatus(b *app.Backend, h lokt.Holder) string {
	p := h.Owner.Process
	if host, err := os.Hostname(); err != nil || h.Owner.Host != host || p.Boot == "" || p.Start == 0 {
		return pidUnknown
	}
	return process.Check(p, true).String()
}

// orphaned reports whether the process table knows that the process of a live hold is gone.
func orphaned(b *app.Backend, h lokt.Holder) bool {
	p := *h.Process
	return p.Liveness != "" && process.Check(p, h.Owner.Host == b.Store.Host()) == process.Dead
}

// liveFileOf returns the liveness file that whoever keeps the hold alive has open.
func liveFileOf(b *app.Backend, h lokt.Holder) string {
	file, _, _ := strings.Cut(h.Process.Liveness, ":")
	return filepath.Join(b.Store.Root(), "live", filepath.Base(file))
}

// pid returns the process ID to show for a hold.
func pid(h lokt.Holder) int {
	if h.Process != nil {
		return h.Process.PID
	}
	return h.Owner.Process.PID
}

// blockedJSON is how a claim that was not granted is told to programs. All holder fields are about the first holder in the
// way.
type blockedJSON struct {
	Status           string     `json:"status"` // "blocked"
	Name             string     `json:"name"`
	Reason           string     `json:"reason"` // held, frozen or queued
	HolderOwner      string     `json:"holder_owner,omitempty"`
	HolderHost       string     `json:"holder_host,omitempty"`
	HolderPID        int        `json:"holder_pid,omitempty"`
	HolderAgentID    string     `json:"holder_agent_id,omitempty"`
	HolderKind       string     `json:"holder_kind,omitempty"`
	HolderAgeSec     int64      `json:"holder_age_sec"`
	HolderTTLSec     int64      `json:"holder_ttl_sec,omitempty"`
	HolderRemaining  *int64     `json:"holder_remaining_sec,omitempty"`
	HolderExpired    bool       `json:"holder_expired"`
	HolderPIDStatus  string     `json:"holder_pid_status,omitempty"`
	HolderAcquiredTS *time.Time `json:"holder_acquired_ts,omitempty"`
	HolderExpiresAt  *time.Time `json:"holder_expires_at,omitempty"`
	ExpiresAt        *time.Time `json:"expires_at,omitempty"`
	Holders          int        `json:"holders"`
	Ahead            int        `json:"ahead"` // waiting claims that come first
	FreezeOwner      string     `json:"freeze_owner,omitempty"`
	FreezeReason     string     `json:"freeze_reason,omitempty"`
	TimedOut         bool       `json:"timed_out,omitempty"`
	Message          string     `json:"message"`
}

func viewBlocked(b *app.Backend, e *lokt.BlockedError) blockedJSON {
	v := blockedJSON{
		Status: "blocked", Name: e.Name, Reason: "queued", Holders: len(e.Holders), Ahead: len(e.Ahead),
		TimedOut: e.TimedOut > 0, Message: blockedText(b, e),
	}
	if len(e.Holders) > 0 {
		h := e.Holders[0]
		v.Reason = "held"
		v.HolderOwner, v.HolderHost, v.HolderPID, v.HolderAgentID = h.Owner.ID, h.Owner.Host, pid(h), h.Owner.Session
		v.HolderKind = h.Kind()
		v.HolderAgeSec = app.Age(e.Now, h.HeldSince)
		v.HolderTTLSec = app.Seconds(h.TTL)
		v.HolderPIDStatus = pidStatus(b, h)
		v.HolderAcquiredTS = at(h.AcquiredAt)
		v.HolderExpiresAt = at(h.ExpiresAt)
		v.ExpiresAt = v.HolderExpiresAt
		if !h.ExpiresAt.IsZero() {
			left := app.Seconds(max(h.ExpiresAt.Sub(e.Now), 0))
			v.HolderRemaining = &left
			v.HolderExpired = e.Now.After(h.ExpiresAt)
		}
	}
	if f := e.Freeze; f != nil {
		v.Reason = "frozen"
		v.FreezeOwner, v.FreezeReason = f.Owner.ID, f.Reason
		v.ExpiresAt = at(f.ExpiresAt)
	}
	return v
}

// at returns a time for JSON: nothing for the zero time.
func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// blockedText says in one line what is in the way and what to do.
func blockedText(b *app.Backend, e *lokt.BlockedError) string {
	var text strings.Builder
	if e.TimedOut > 0 {
		fmt.Fprintf(&text, "gave up after %s: ", app.Short(e.TimedOut))
	}
	switch {
	case len(e.Cycle) > 0:
		fmt.Fprintf(&text, "%q would never be free: %s; take these locks in one order, or together: lokt guard A B -- …",
			e.Name, strings.Join(e.Cycle, " → "))
	case e.Freeze != nil && e.Freeze.Damaged != "":
		fmt.Fprintf(&text, "%q is frozen by a record that cannot be read (%s); remove it with: lokt unfreeze %s --force", e.Name, e.Freeze.Damaged, e.Name)
	case e.Freeze != nil:
		fmt.Fprintf(&text, "%q is frozen by %s", e.Name, e.Freeze.Owner)
		if e.Freeze.Reason != "" {
			fmt.Fprintf(&text, " (%s)", app.OneLine(e.Freeze.Reason))
		}
		if !e.Freeze.ExpiresAt.IsZero() {
			fmt.Fprintf(&text, ", for another %s", app.Short(e.Freeze.ExpiresAt.Sub(e.Now)))
		}
		fmt.Fprintf(&text, "; wait with --wait, or end it with: lokt unfreeze %s (with --force if it is not yours)", e.Name)
	case len(e.Holders) > 0:
		fmt.Fprintf(&text, "%q is held by %s", e.Name, holderText(b, e.Holders[0], e.Now))
		if n := len(e.Holders) - 1; n > 0 {
			fmt.Fprintf(&text, ", and by %d more", n)
		}
		fmt.Fprintf(&text, "; wait with --wait, or see: lokt why %s", e.Name)
	case len(e.Ahead) > 0:
		fmt.Fprintf(&text, "%q is next for %s, who waits already; join the queue with --wait", e.Name, e.Ahead[0].Owner)
	default:
		fmt.Fprintf(&text, "%q is not available; see: lokt why %s", e.Name, e.Name)
	}
	return text.String()
}

// holderText describes a holder in half a line.
func holderText(b *app.Backend, h lokt.Holder, now time.Time) string {
	var text strings.Builder
	text.WriteString(h.Owner.String())
	text.WriteString(" (")
	if h.Owner.Session != "" {
		fmt.Fprintf(&text, "agent %s, ", h.Owner.Session)
	}
	if p := pid(h); p != 0 {
		fmt.Fprintf(&text, "pid %d", p)
		if b.Store == nil && h.Strict && pidStatus(b, h) == pidUnknown {
			text.WriteString(" there") // and nothing is known of it here
		}
		switch status := pidStatus(b, h); status {
		case pidUnbound:
		case pidUnknown:
			if b.Store != nil {
				text.WriteString(" unknown")
			}
		case pidOrphaned:
			fmt.Fprintf(&text, " dead, but something it started still runs: fuser -v %s", liveFileOf(b, h))
		default:
			fmt.Fprintf(&text, " %s", status)
		}
		text.WriteString(", ")
	}
	text.WriteString(h.Kind())
	if !h.HeldSince.IsZero() { // as in records made by hand
		fmt.Fprintf(&text, " for %s", app.Short(now.Sub(h.HeldSince)))
	}
	switch {
	case !h.Pending.IsZero():
		fmt.Fprintf(&text, ", granted in its turn, and passed on in %s unless it is taken up", app.Short(h.Pending.Sub(now)))
	case h.ExpiresAt.IsZero() && h.Strict:
		text.WriteString(", until its command ends")
	case h.ExpiresAt.IsZero() && h.Process != nil:
		text.WriteString(", until that process ends")
	case h.ExpiresAt.IsZero():
		text.WriteString(", until it is unlocked")
	case now.After(h.ExpiresAt):
		fmt.Fprintf(&text, ", expired %s ago", app.Short(now.Sub(h.ExpiresAt)))
	case h.Strict && h.Renewals > 0:
		fmt.Fprintf(&text, ", renewed %s ago, expires in %s", app.Short(now.Sub(h.AcquiredAt)), app.Short(h.ExpiresAt.Sub(now)))
	default:
		fmt.Fprintf(&text, ", expires in %s", app.Short(h.ExpiresAt.Sub(now)))
	}
	text.WriteString(")")
	return text.String()
}
