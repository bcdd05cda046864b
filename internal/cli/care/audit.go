package care

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/proof"
)

type auditOptions struct {
	audit.Query
	since, event, bundle, judge string
	keep                        []string
	tail                        bool
}

// tailEntries is how many of the entries that are there --tail begins with.
const tailEntries = 10

func newAudit(a cmd) *cobra.Command {
	var o auditOptions
	cmd := app.Plain("audit", func(cmd *cobra.Command) error {
		if err := app.NotEmpty(cmd, "since", "name", "event", "bundle", "check"); err != nil {
			return err
		} else if err := o.check(a, cmd.Flags().Changed("limit")); err != nil {
			return err
		} else if o.judge != "" {
			return proof.Check(a.App, o.judge)
		}
		return a.runAudit(o)
	})
	fs := cmd.Flags()
	fs.StringVar(&o.since, "since", "", "only what happened since: a duration before now (15m, 2h, 7d), a date, or a time as in RFC 3339")
	fs.BoolVar(&o.tail, "tail", false, "go on with what happens, until interrupted; begins with the last 10 entries unless --since or --limit says otherwise")
	fs.StringVar(&o.Name, "name", "", "only what happened to this lock")
	fs.StringVar(&o.event, "event", "", "only events of this type, such as acquire, deny or takeover")
	fs.IntVar(&o.Limit, "limit", 0, "only the newest N entries")
	fs.StringVar(&o.bundle, "bundle", "", "write it to this new file, with pseudonyms for owners, hosts and leases, for others to judge")
	fs.StringSliceVar(&o.keep, "keep", nil, "with --bundle: leave names, times, tokens or paths as they are")
	fs.StringVar(&o.judge, "check", "", "judge the events in this file, a bundle or a file of an audit log: was this exclusion, and in order?")
	// The errors are for flags that there are not.
	_ = cmd.RegisterFlagCompletionFunc("name", a.CompleteNames)
	_ = cmd.RegisterFlagCompletionFunc("event", cobra.FixedCompletions(eventTypes(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// eventTypes returns the names of all events that this version writes.
func eventTypes() []string {
	return app.Strings([]lokt.EventType{
		lokt.EventAcquire, lokt.EventDeny, lokt.EventFreezeDeny, lokt.EventRelease, lokt.EventRenew, lokt.EventRenewFail, lokt.EventLost,
		lokt.EventTakeover, lokt.EventAutoPrune, lokt.EventForceBreak, lokt.EventStaleBreak, lokt.EventCorruptBreak, lokt.EventFreeze,
		lokt.EventUnfreeze, lokt.EventForceThaw, lokt.EventWait, lokt.EventPreempt, lokt.EventMismatch, lokt.EventAsk, lokt.EventAnswer, lokt.EventPass,
	})
}

// check finds out what the command line means.
func (o *auditOptions) check(a cmd, limit bool) (err error) {
	switch {
	case limit && o.Limit < 1:
		return app.Usagef("--limit %d shows nothing", o.Limit)
	case o.judge != "" && (o.tail || limit || len(o.keep) > 0 || o.since+o.Name+o.event+o.bundle != ""):
		return app.Usagef("--check judges a file as it is: it goes with no other flag")
	case o.bundle == "" && len(o.keep) > 0:
		return app.Usagef("--keep is about a bundle: name its file with --bundle")
	case o.bundle != "" && (o.tail || o.event != ""):
		return app.Usagef("--bundle is for a history that has all that happened until now: leave out --tail and --event")
	case o.tail && o.since == "" && !limit:
		o.Limit = tailEntries
	}
	if o.since != "" {
		if o.Since, err = audit.ParseSince(o.since, time.Now()); err != nil {
			return app.Usagef("--since: %w", err)
		}
	}
	if o.Name != "" {
		if err := app.ValidNames(o.Name); err != nil {
			return err
		}
	}
	if o.event != "" {
		o.Types = []lokt.EventType{lokt.EventType(o.event)}
		if all := eventTypes(); !slices.Contains(all, o.event) {
			a.Tell("warning: lokt writes no event %q; those it does are %s", o.event, strings.Join(all, ", "))
		}
	}
	return nil
}

func (a cmd) runAudit(o auditOptions) error {
	b, err := a.Backend()
	if err != nil {
		return err
	}
	ctx, stop := context.Background(), func() {}
	if o.tail {
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	}
	defer stop()
	ctx, done := app.WhileRead(ctx, a.Out)
	defer done()
	if o.bundle != "" {
		return proof.Bundle(a.App, o.bundle, o.keep, entries(ctx, b, o.Query, false))
	}
	v := auditView{cmd: a, tail: o.tail, far: b.Far != nil, before: fmt.Sprintf(auditLine, "TIME", "EVENT", "NAME", "OWNER", "PID", "TOKEN", "DETAILS")}
	if a.JSON {
		v.before = "["
	}
	for e, err := range entries(ctx, b, o.Query, o.tail) {
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			err = v.fail(err)
		} else {
			err = v.show(e)
		}
		if err != nil {
			return err
		}
	}
	return v.end()
}

// auditView shows entries as they are read.
type auditView struct {
	cmd
	tail, far bool
	before    string // what comes before the next entry: the head, or what parts it from the last
	junk      int    // lines that are no entries
	failed    bool   // something could not be read
}

// fail takes note of an error, and returns it if nothing more can be shown.
func (v *auditView) fail(err error) error {
	isGarbage := errors.As(err, new(*audit.GarbageError))
	switch {
	case isGarbage && !v.tail:
		v.junk++
		return nil
	case v.far && !v.tail:
		return err
	}
	v.failed = v.failed || !isGarbage
	v.Tell("warning: audit log: %v", v.Reached(err))
	return nil
}

func (v *auditView) show(e audit.Entry) error {
	before := v.before
	switch {
	case v.JSON && v.tail:
		return v.Write(string(e.Raw) + "\n")
	case v.JSON:
		v.before = ",\n"
		return v.Write(before + string(e.Raw))
	}
	v.before = ""
	token := ""
	if t, ok := e.Extra[audit.ExtraToken]; ok {
		token = fmt.Sprint(t)
	}
	return v.Write(before + fmt.Sprintf(auditLine, e.TS.Local().Format("2006-01-02 15:04:05.000"), app.OneLine(e.Event), app.OneLine(e.Name),
		app.OneLine(lokt.Owner{ID: e.Owner, Host: e.Host}.String()), app.PID(e.PID), app.OneLine(token), details(e)))
}

// auditLine is a line for people: when, what, the name, the owner, the process, the token, and details.
const auditLine = "%-23s  %-15s %-20s %-24s %7s %16s  %s\n"

// end says how much was not shown, and fails if something could not be read.
func (v *auditView) end() (err error) {
	if v.JSON && !v.tail {
		err = v.Write(strings.TrimSuffix(v.before, ",\n") + "]\n")
	}
	if v.junk > 0 {
		v.Tell("warning: lines of the audit log that are no entries: %d", v.junk)
	}
	if err == nil && v.failed && !v.tail {
		return app.Exit(app.ExitError)
	}
	return err
}

// details says what is particular to an entry: why, how it came out, who else.
func details(e audit.Entry) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(e.Extra)) {
		value := app.OneLine(fmt.Sprint(e.Extra[k]))
		if strings.Contains(value, " ") {
			value = fmt.Sprintf("%q", value)
		}
		if k != audit.ExtraToken {
			words = append(words, app.OneLine(k)+"="+value)
		}
	}
	if e.TTLSec > 0 {
		words = append(words, fmt.Sprintf("ttl=%ds", e.TTLSec))
	}
	if e.AgentID != "" {
		words = append(words, "agent="+app.OneLine(e.AgentID))
	}
	return strings.Join(words, " ")
}

// entries returns the entries of the audit log that the query lets through, and if follow is set goes on with those that
// come, until ctx ends. Errors do not end the sequence, but for the last of a server.
func entries(ctx context.Context, b *app.Backend, q audit.Query, follow bool) iter.Seq2[audit.Entry, error] {
	switch {
	case b.Store == nil:
		return serverEntries(ctx, b.Far, q, follow)
	case follow:
		return audit.Open(b.Store.Root()).Follow(ctx, q)
	}
	return audit.Open(b.Store.Root()).Read(ctx, q)
}

// errEnough says that the reader wants no more.
var errEnough = errors.New("enough")

// retry is the pause before a server that does not answer is asked again.
const retry = time.Second

// serverEntries returns the events of a server as entries. If it follows them, it tells of an outage when it begins, and
// asks again until it is over.
func serverEntries(ctx context.Context, log lokt.EventLog, q audit.Query, follow bool) iter.Seq2[audit.Entry, error] {
	return func(yield func(audit.Entry, error) bool) {
		r := eventReader{log: log, query: q, yield: yield}
		read := r.rest
		if r.query.Limit = 0; q.Limit > 0 {
			read = func(ctx context.Context) error { return r.latest(ctx, q.Limit) }
		}
		for away := false; ; {
			err := read(ctx)
			down := errors.Is(err, lokt.ErrUnavailable)
			switch {
			case errors.Is(err, errEnough) || follow && ctx.Err() != nil:
				return
			case err != nil && !(down && away) && !yield(audit.Entry{}, err), !follow || err != nil && !down:
				return
			case down:
				app.Pause(ctx, retry)
			default:
				read = r.next
			}
			away = down
		}
	}
}

// eventReader reads the events of a server.
type eventReader struct {
	log   lokt.EventLog
	query lokt.EventQuery // After is the last event that was read
	yield func(audit.Entry, error) bool
}

// next waits for events, and passes them on.
func (r *eventReader) next(ctx context.Context) error {
	if err := r.log.WaitEvents(ctx, r.query.After); err != nil {
		return err
	}
	return r.rest(ctx)
}

// rest passes on the events that have not been read yet.
func (r *eventReader) rest(ctx context.Context) error {
	for {
		page, err := r.log.ReadEvents(ctx, r.query)
		if err != nil {
			return err
		}
		if after := r.query.After; after > 0 && page.Oldest > after+1 &&
			!r.yield(audit.Entry{}, fmt.Errorf("%w: the server has forgotten events before they could be read", lokt.ErrUnavailable)) {
			return errEnough
		}
		if err := r.pass(page.Events); err != nil {
			return err
		}
		if !page.More || len(page.Events) == 0 {
			r.query.After = max(r.query.After, page.Newest)
			return nil
		}
	}
}

// latest passes on the newest n of the events that are there.
func (r *eventReader) latest(ctx context.Context, n int) error {
	var found []lokt.LoggedEvent
	q, newest := r.query, uint64(0)
	q.Latest = true
	for more := true; more; {
		q.Limit = min(n-len(found), lokt.MaxEvents)
		page, err := r.log.ReadEvents(ctx, q)
		if err != nil {
			return err
		}
		newest = max(newest, page.Newest)
		if found = append(page.Events, found...); len(found) > 0 {
			q.Before = found[0].Seq
		}
		more = page.More && len(found) < n
	}
	err := r.pass(found)
	r.query.After = max(newest, r.query.After)
	return err
}

func (r *eventReader) pass(events []lokt.LoggedEvent) error {
	for _, e := range events {
		r.query.After = e.Seq
		e.LeaseID = httpapi.Shown(e.LeaseID)
		entry := audit.FromEvent(e.Event)
		entry.Raw = bytes.TrimSuffix(audit.Encode([]lokt.Event{e.Event}), []byte("\n"))
		if !r.yield(entry, nil) {
			return errEnough
		}
	}
	return nil
}
