package care

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

type auditOptions struct {
	audit.Query
	since    string
	tail     bool
	limitSet bool
}

// tailEntries is how many of the entries that are there --tail begins with.
const tailEntries = 10

func newAudit(a cmd) *cobra.Command {
	var o auditOptions
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show what happened to locks",
		Long: "Show what happened to locks, oldest first: who took, renewed, lost and gave back what, who was denied, and why.\n" +
			"With --json the entries are an array, each as it stands in the log; with --tail, a line each.",
		Example: "  lokt audit --since 2h --name build\n  lokt audit --tail --event takeover\n  lokt audit --since 2006-01-02 --json",
		Args:    app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.limitSet = cmd.Flags().Changed("limit")
			if err := o.check(a); err != nil {
				return err
			}
			return a.runAudit(o)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.since, "since", "", "only what happened since: a duration before now (15m, 2h, 7d), a date, or a time as in RFC 3339")
	fs.BoolVar(&o.tail, "tail", false, "go on with what happens, until interrupted; begins with the last 10 entries unless --since or --limit says otherwise")
	fs.StringVar(&o.Name, "name", "", "only what happened to this lock")
	fs.StringVar(&o.Event, "event", "", "only events of this type, such as acquire, deny or takeover")
	fs.IntVar(&o.Limit, "limit", 0, "only the newest N entries")
	// The errors are for flags that there are not.
	_ = cmd.RegisterFlagCompletionFunc("name", a.CompleteNames)
	_ = cmd.RegisterFlagCompletionFunc("event", cobra.FixedCompletions(eventTypes(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// eventTypes returns the names of all events that this version writes.
func eventTypes() []string {
	var names []string
	for _, t := range []lokt.EventType{
		lokt.EventAcquire, lokt.EventDeny, lokt.EventFreezeDeny, lokt.EventRelease, lokt.EventRenew, lokt.EventRenewFail, lokt.EventLost,
		lokt.EventTakeover, lokt.EventAutoPrune, lokt.EventForceBreak, lokt.EventStaleBreak, lokt.EventCorruptBreak, lokt.EventFreeze,
		lokt.EventUnfreeze, lokt.EventForceThaw, lokt.EventWait, lokt.EventPreempt, lokt.EventMismatch,
	} {
		names = append(names, string(t))
	}
	return names
}

// check finds out what the command line means.
func (o *auditOptions) check(a cmd) error {
	switch {
	case o.limitSet && o.Limit < 1:
		return app.Usagef("--limit %d shows nothing", o.Limit)
	case o.tail && o.since == "" && !o.limitSet:
		o.Limit = tailEntries
	}
	if o.since != "" {
		since, err := audit.ParseSince(o.since, time.Now())
		if err != nil {
			return app.Usagef("--since: %w", err)
		}
		o.Since = since
	}
	if o.Name != "" {
		if err := app.ValidNames(o.Name); err != nil {
			return err
		}
	}
	if o.Event != "" && !slices.Contains(eventTypes(), o.Event) {
		a.Tell("warning: lokt writes no event %q; those it does are %s", o.Event, strings.Join(eventTypes(), ", "))
	}
	return nil
}

func (a cmd) runAudit(o auditOptions) error {
	b, err := a.Backend()
	if err != nil {
		return err
	}
	ctx := context.Background()
	if o.tail {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
	}
	ctx, stop := app.WhileRead(ctx, a.Out)
	defer stop()
	v := auditView{cmd: a, tail: o.tail}
	for e, err := range entries(b, ctx, o.Query, o.tail) {
		if ctx.Err() != nil {
			break
		}
		if err := v.show(e, err); err != nil {
			return err
		}
	}
	return v.end()
}

// auditView shows entries as they are read.
type auditView struct {
	cmd
	tail   bool
	header bool  // something was written
	junk   int   // lines that are no entries
	failed error // the last thing that could not be read
}

func (v *auditView) show(e audit.Entry, err error) error {
	var garbage *audit.GarbageError
	switch {
	case errors.As(err, &garbage):
		if v.junk++; v.tail {
			v.Tell("warning: %v", garbage)
		}
		return nil
	case err != nil && v.far():
		if !v.tail {
			return err
		}
		v.Tell("warning: %v", v.Reached(err))
		return nil
	case err != nil:
		v.Tell("warning: audit log: %v", err)
		v.failed = err
		return nil
	case v.JSON && v.tail:
		return v.Write(string(e.Raw) + "\n")
	case v.JSON:
		before := ",\n"
		if !v.header {
			v.header, before = true, "["
		}
		return v.Write(before + string(e.Raw))
	}
	const layout = "%-23s  %-15s %-20s %-24s %7s %16s  %s\n"
	if !v.header {
		v.header = true
		fmt.Fprintf(v.Out, layout, "TIME", "EVENT", "NAME", "OWNER", "PID", "TOKEN", "DETAILS")
	}
	owner := e.Owner
	if e.Host != "" {
		owner += "@" + e.Host
	}
	token := ""
	if t, ok := e.Extra[audit.ExtraToken]; ok {
		token = fmt.Sprint(t)
	}
	_, err = fmt.Fprintf(v.Out, layout, e.TS.Local().Format("2006-01-02 15:04:05.000"), cell(e.Event), cell(e.Name), cell(owner),
		fmt.Sprint(e.PID), cell(token), details(e))
	if err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// far reports whether a server keeps the log.
func (v *auditView) far() bool { return v.Opened != nil && v.Opened.Far != nil }

// end says what was not shown, and fails if something could not be read.
func (v *auditView) end() error {
	if v.JSON && !v.tail {
		end := "]\n"
		if !v.header {
			end = "[]\n"
		}
		if err := v.Write(end); err != nil {
			return err
		}
	}
	if v.junk > 0 && !v.tail {
		v.Tell("warning: lines of the audit log that are no entries: %d", v.junk)
	}
	if v.failed != nil && !v.tail {
		return app.Exit(app.ExitError)
	}
	return nil
}

// details says what is particular to an entry: why, how it came out, who else.
func details(e audit.Entry) string {
	var words []string
	if e.TTLSec > 0 {
		words = append(words, fmt.Sprintf("ttl=%ds", e.TTLSec))
	}
	if e.AgentID != "" {
		words = append(words, "agent="+cell(e.AgentID))
	}
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(e.Extra)), func(k string) bool { return k == audit.ExtraToken })
	rank := func(k string) int { // what explains an entry comes first
		return slices.Index([]string{lokt.ExtraBy, lokt.ExtraDisplaced, lokt.ExtraReason, lokt.ExtraOutcome}, k)
	}
	slices.SortStableFunc(keys, func(x, y string) int { return rank(y) - rank(x) })
	var extra []string
	for _, k := range keys {
		value := cell(fmt.Sprint(e.Extra[k]))
		if strings.Contains(value, " ") {
			value = fmt.Sprintf("%q", value)
		}
		extra = append(extra, cell(k)+"="+value)
	}
	return strings.Join(append(extra, words...), " ")
}

// cell makes text fit for a column of a table.
func cell(s string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(app.Printable(s))
}
