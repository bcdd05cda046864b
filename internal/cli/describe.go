package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
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
func (b *backend) pidStatus(h lokt.Holder) string {
	switch {
	case b.store == nil && h.Strict:
		return b.guardStatus(h)
	case h.Process == nil:
		return pidUnbound
	case b.store == nil:
		return pidUnknown
	}
	status := b.store.State(h).String()
	if status == pidAlive && b.orphaned(h) {
		return pidOrphaned
	}
	return status
}

// guardStatus tells whether the guard of a hold on a server lives, as far as this host can tell. The server itself goes by
// heartbeats alone.
func (b *backend) guardStatus(h lokt.Holder) string {
	p := h.Owner.Process
	if host, err := os.Hostname(); err != nil || h.Owner.Host != host || p.Boot == "" || p.Start == 0 {
		return pidUnknown
	}
	return process.Check(p, true).String()
}

// orphaned reports whether the process table knows that the process of a live hold is gone.
func (b *backend) orphaned(h lokt.Holder) bool {
	p := *h.Process
	return p.Liveness != "" && process.Check(p, h.Owner.Host == b.store.Host()) == process.Dead
}

// liveFileOf returns the liveness file that whoever keeps the hold alive has open.
func (b *backend) liveFileOf(h lokt.Holder) string {
	file, _, _ := strings.Cut(h.Process.Liveness, ":")
	return filepath.Join(b.store.Root(), "live", filepath.Base(file))
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

func (b *backend) blockedJSON(e *lokt.BlockedError) blockedJSON {
	v := blockedJSON{
		Status: "blocked", Name: e.Name, Reason: "queued", Holders: len(e.Holders), Ahead: len(e.Ahead),
		TimedOut: e.TimedOut > 0, Message: b.blockedText(e),
	}
	if len(e.Holders) > 0 {
		h := e.Holders[0]
		v.Reason = "held"
		v.HolderOwner, v.HolderHost, v.HolderPID, v.HolderAgentID = h.Owner.ID, h.Owner.Host, pid(h), h.Owner.Session
		v.HolderKind = h.Kind()
		v.HolderAgeSec = age(e.Now, h.HeldSince)
		v.HolderTTLSec = seconds(h.TTL)
		v.HolderPIDStatus = b.pidStatus(h)
		v.HolderAcquiredTS = at(h.AcquiredAt)
		v.HolderExpiresAt = at(h.ExpiresAt)
		v.ExpiresAt = v.HolderExpiresAt
		if !h.ExpiresAt.IsZero() {
			left := seconds(max(h.ExpiresAt.Sub(e.Now), 0))
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

// seconds rounds a duration up to whole seconds.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// blockedText says in one line what is in the way and what to do.
func (b *backend) blockedText(e *lokt.BlockedError) string {
	var text strings.Builder
	if e.TimedOut > 0 {
		fmt.Fprintf(&text, "gave up after %s: ", short(e.TimedOut))
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
			fmt.Fprintf(&text, " (%s)", oneLine(e.Freeze.Reason))
		}
		if !e.Freeze.ExpiresAt.IsZero() {
			fmt.Fprintf(&text, ", for another %s", short(e.Freeze.ExpiresAt.Sub(e.Now)))
		}
		fmt.Fprintf(&text, "; wait with --wait, or end it with: lokt unfreeze %s (with --force if it is not yours)", e.Name)
	case len(e.Holders) > 0:
		fmt.Fprintf(&text, "%q is held by %s", e.Name, b.holderText(e.Holders[0], e.Now))
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
func (b *backend) holderText(h lokt.Holder, now time.Time) string {
	var text strings.Builder
	text.WriteString(h.Owner.String())
	text.WriteString(" (")
	if h.Owner.Session != "" {
		fmt.Fprintf(&text, "agent %s, ", h.Owner.Session)
	}
	if p := pid(h); p != 0 {
		fmt.Fprintf(&text, "pid %d", p)
		if b.store == nil && h.Strict && b.pidStatus(h) == pidUnknown {
			text.WriteString(" there") // and nothing is known of it here
		}
		switch status := b.pidStatus(h); status {
		case pidUnbound:
		case pidUnknown:
			if b.store != nil {
				text.WriteString(" unknown")
			}
		case pidOrphaned:
			fmt.Fprintf(&text, " dead, but something it started still runs: fuser -v %s", b.liveFileOf(h))
		default:
			fmt.Fprintf(&text, " %s", status)
		}
		text.WriteString(", ")
	}
	text.WriteString(h.Kind())
	if !h.HeldSince.IsZero() { // as in records made by hand
		fmt.Fprintf(&text, " for %s", short(now.Sub(h.HeldSince)))
	}
	switch {
	case !h.Pending.IsZero():
		fmt.Fprintf(&text, ", granted in its turn, and passed on in %s unless it is taken up", short(h.Pending.Sub(now)))
	case h.ExpiresAt.IsZero() && h.Strict:
		text.WriteString(", until its command ends")
	case h.ExpiresAt.IsZero() && h.Process != nil:
		text.WriteString(", until that process ends")
	case h.ExpiresAt.IsZero():
		text.WriteString(", until it is unlocked")
	case now.After(h.ExpiresAt):
		fmt.Fprintf(&text, ", expired %s ago", short(now.Sub(h.ExpiresAt)))
	case h.Strict && h.Renewals > 0:
		fmt.Fprintf(&text, ", renewed %s ago, expires in %s", short(now.Sub(h.AcquiredAt)), short(h.ExpiresAt.Sub(now)))
	default:
		fmt.Fprintf(&text, ", expires in %s", short(h.ExpiresAt.Sub(now)))
	}
	text.WriteString(")")
	return text.String()
}

// short rounds a duration for people.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 100*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// isTerminal reports whether a person sees what is written to w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && fi.Name() != "null"
}
