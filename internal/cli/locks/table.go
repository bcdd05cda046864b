package locks

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

// cells of a row of the table of locks.
const (
	cellName = iota
	cellState
	cellKind
	cellShare
	cellOwner
	cellAgent
	cellPID
	cellAge
	cellTTL
	cellExpires
	cellWaiting
	cellFreeze
	cells
)

type tableRow [cells]string

// table is a table of locks for people: a row for each hold, or for the lock if nobody holds it.
type table struct {
	rows  []tableRow
	width [cells]int
}

func (t *table) add(v *lockJSON) {
	holds := v.Holders
	if holds == nil {
		holds = []holdJSON{v.holdJSON}
	}
	for i := range holds {
		row := holds[i].row()
		row[cellName] = v.Name
		if v.Holders == nil { // the lock's own state says more than the hold's
			row[cellState] = stateText(v.State)
		}
		if i == 0 {
			if v.Waiters > 0 {
				row[cellWaiting] = strconv.Itoa(v.Waiters)
				if v.Away > 0 {
					row[cellWaiting] += fmt.Sprintf(" (%d away)", v.Away)
				}
			}
			row[cellFreeze] = v.Freeze.short()
		}
		t.fit(&row)
		t.rows = append(t.rows, row)
	}
}

// fit makes every cell of the row fit for a line, and the columns wide enough for it.
func (t *table) fit(row *tableRow) {
	for c, text := range row {
		if text == "" {
			text = "-"
		}
		row[c] = app.OneLine(text)
		t.width[c] = max(t.width[c], utf8.RuneCountInString(row[c]))
	}
}

// append appends the table, unless it is empty.
func (t *table) append(b []byte) []byte {
	if len(t.rows) == 0 {
		return b
	}
	head := tableRow{"NAME", "STATE", "KIND", "SHARE", "OWNER", "AGENT", "PID", "AGE", "TTL", "EXPIRES", "WAITING", "FREEZE"}
	t.fit(&head)
	line := 1
	for _, w := range t.width {
		line += w + 2
	}
	b = slices.Grow(b, (len(t.rows)+1)*line)
	b = t.appendRow(b, &head)
	for i := range t.rows {
		b = t.appendRow(b, &t.rows[i])
	}
	return b
}

func (t *table) appendRow(b []byte, row *tableRow) []byte {
	for c, cell := range row {
		b = append(b, cell...)
		if c < cells-1 {
			b = app.Pad(b, t.width[c]-utf8.RuneCountInString(cell)+2)
		}
	}
	return append(b, '\n')
}

// row returns what the table says of a hold.
func (v *holdJSON) row() (row tableRow) {
	row[cellState] = stateText(v.State)
	if v.Owner == "" {
		return row
	}
	row[cellKind] = v.Kind
	row[cellShare] = shareText(v.Limit)
	row[cellOwner] = lokt.Owner{ID: v.Owner, Host: v.Host}.String()
	row[cellAgent] = v.AgentID
	row[cellPID] = strconv.Itoa(v.PID)
	row[cellAge] = secondsText(v.AgeSec)
	if v.TTLSec > 0 {
		row[cellTTL] = secondsText(v.TTLSec)
	}
	switch {
	case v.Expired:
		row[cellExpires] = "expired"
	case v.Remaining != nil:
		row[cellExpires] = "in " + secondsText(*v.Remaining)
	}
	return row
}

// stateText makes what is nobody's any more stand out.
func stateText(state string) string {
	switch state {
	case stateFree, StateHeld, StateFrozen, stateQueued, "":
		return state
	case stateCorrupt, stateUnreadable:
		return strings.ToUpper(state)
	}
	return "STALE(" + state + ")"
}

func shareText(limit int) string {
	switch limit {
	case 0:
		return ""
	case -1:
		return "shared"
	}
	return "slots=" + strconv.Itoa(limit)
}

func secondsText(n int64) string { return app.Short(time.Duration(n) * time.Second) }

func (f *freezeJSON) short() string {
	switch {
	case f == nil:
		return ""
	case f.Damaged != "":
		return "damaged"
	case f.Remaining != nil:
		return "by " + f.Owner + ", for " + secondsText(*f.Remaining)
	}
	return "by " + f.Owner
}

// appendDetail appends everything about one lock, for people.
func (v *lockJSON) appendDetail(b []byte) []byte {
	out := bytes.NewBuffer(b)
	line := func(what, format string, args ...any) {
		fmt.Fprintf(out, "%-10s %s\n", what+":", app.OneLine(fmt.Sprintf(format, args...)))
	}
	line("name", "%s", v.Name)
	line("state", "%s", stateText(v.State))
	if v.Problem != "" {
		line("problem", "%s", v.Problem)
	}
	if f := v.Freeze; f != nil {
		f.detail(line)
	}
	holds := v.Holders
	if holds == nil && v.Owner != "" {
		holds = []holdJSON{v.holdJSON}
	}
	for i, h := range holds {
		if len(holds) > 1 {
			fmt.Fprintln(out)
			line("holder", "%d of %d", i+1, len(holds))
			line("state", "%s", stateText(h.State))
		}
		h.detail(line)
	}
	if len(v.Queue) > 0 {
		fmt.Fprintln(out)
	}
	for _, w := range v.Queue {
		text := fmt.Sprintf("%d. %s (", w.Position, lokt.Owner{ID: w.Owner, Host: w.Host})
		if w.AgentID != "" {
			text += "agent " + w.AgentID + ", "
		}
		text += fmt.Sprintf("pid %d, %s, for %s", w.PID, w.Kind, secondsText(w.AgeSec))
		if w.Priority != 0 {
			text += fmt.Sprintf(", priority %d", w.Priority)
		}
		if w.Away {
			text += "; " + awayUntil(*w.Leaves)
		}
		line("waiting", "%s)", text)
	}
	return out.Bytes()
}

// awayUntil says what becomes of a waiter that is away.
func awayUntil(leaves int64) string {
	return fmt.Sprintf("away: passed over until it asks again, out of the queue in %s", secondsText(leaves))
}

func (v *holdJSON) detail(line func(what, format string, args ...any)) {
	line("owner", "%s", lokt.Owner{ID: v.Owner, Host: v.Host})
	if v.AgentID != "" {
		line("agent", "%s", v.AgentID)
	}
	if v.PID != 0 {
		status := v.PIDStatus
		if status == pidUnbound {
			status = "the lock does not depend on it"
		}
		line("pid", "%d (%s)", v.PID, status)
	}
	if v.ChildPID != 0 {
		line("child", "%d", v.ChildPID)
	}
	line("kind", "%s", v.Kind)
	if share := shareText(v.Limit); share != "" {
		line("share", "%s", share)
	}
	line("lock_id", "%s", v.LockID)
	if v.Token != 0 {
		line("token", "%d", v.Token)
	}
	if !v.HeldSince.IsZero() {
		line("held", "for %s (since %s)", secondsText(v.AgeSec), stamp(v.HeldSince))
	}
	if v.Renewals > 0 {
		line("renewed", "%d times, last %s", v.Renewals, stamp(v.AcquiredTS))
	}
	if v.TTLSec > 0 {
		line("ttl", "%s", secondsText(v.TTLSec))
	}
	if v.MaxHoldSec > 0 {
		line("max hold", "%s", secondsText(v.MaxHoldSec))
	}
	switch {
	case v.Expired:
		line("expires", "%s (expired)", stamp(v.ExpiresAt))
	case v.Remaining != nil:
		line("expires", "%s (in %s)", stamp(v.ExpiresAt), secondsText(*v.Remaining))
	default:
		line("expires", "never")
	}
	if v.Priority != 0 {
		line("priority", "%d", v.Priority)
	}
	for _, k := range slices.Sorted(maps.Keys(v.Metadata)) {
		line("metadata", "%s=%s", k, v.Metadata[k])
	}
}

func (f *freezeJSON) detail(line func(what, format string, args ...any)) {
	if f.Damaged != "" {
		line("freeze", "its record is damaged: %s", f.Damaged)
		return
	}
	text := "by " + lokt.Owner{ID: f.Owner, Host: f.Host}.String()
	if f.AgentID != "" {
		text += " (agent " + f.AgentID + ")"
	}
	text += " for " + secondsText(f.AgeSec)
	if f.Remaining != nil {
		text += fmt.Sprintf(", until %s (in %s)", stamp(f.ExpiresAt), secondsText(*f.Remaining))
	}
	line("freeze", "%s", text)
	if f.Reason != "" {
		line("reason", "%s", f.Reason)
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
