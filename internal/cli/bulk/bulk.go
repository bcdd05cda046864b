// Package bulk acts on all jobs that match a filter, as the server's dashboard does: it counts them, has the number
// confirmed, and waits until the server has done it.
package bulk

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
)

// bulk is an action on many jobs: its flags, and where it is carried out.
type bulk struct {
	*app.App
	verb   string // cancel or retry
	filter url.Values
	count  int

	http *http.Client
	base string // of the server: what is under way is known to one process only
	auth string // the header
}

// Also lets a command about some jobs be about all that match a filter, too.
func Also(a *app.App, cmd *cobra.Command, reason *string) *cobra.Command {
	b := &bulk{App: a, verb: cmd.Name(), filter: url.Values{}}
	for _, f := range [][2]string{
		{"state", "all jobs in this `state`, in place of IDs"}, {"type", "all of this `type`"}, {"tag", "all with this `tag`"}, {"lock", "all that need this `lock`"},
		{"worker", "all that this `worker` has or had"}, {"text", "all with this `text` in payload or error"}, {"since", "all that changed within this `time`"},
	} {
		cmd.Flags().Func(f[0], f[1], func(value string) error {
			b.filter.Set(strings.Replace(f[0], "text", "q", 1), value)
			return nil
		})
	}
	cmd.Flags().IntVar(&b.count, "count", 0, "how many are meant, which confirms it; nothing is done if there are more or less")
	args, run := cmd.Args, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, ids []string) error {
		switch {
		case len(b.filter) == 0:
			return args(cmd, ids)
		case len(ids) > 0 || cmd.Flags().Changed("payload"):
			return app.Usagef("the jobs that match a filter are meant as they are, all of them: leave out IDs and payload")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if len(b.filter) == 0 {
			return run(cmd, ids)
		}
		return b.run(cmd.Context(), *reason)
	}
	return cmd
}

// outcome is an action as the server tells of it.
type outcome struct {
	ID      string    `json:"id,omitzero"`
	Verb    string    `json:"action"`
	Which   string    `json:"filter"`
	Count   int       `json:"count"`
	Set     string    `json:"set,omitzero"` // stands for the jobs that were counted
	Done    int       `json:"done"`
	Failed  int       `json:"failed"`
	Problem string    `json:"problem,omitzero"` // of the last that failed
	Undone  bool      `json:"undone,omitzero"`
	Begins  time.Time `json:"begins,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	Next    string    `json:"next,omitzero"` // in the answer to a request to begin
}

// run counts, asks, and sees to it that it is done.
func (b *bulk) run(ctx context.Context, reason string) error {
	o, err := b.ClientOptions()
	if err != nil {
		return err
	}
	if o.Token != "" {
		b.auth = "Bearer " + o.Token
	}
	c, err := b.Client()
	if err != nil {
		return err
	}
	b.http = c.HTTP()
	b.filter.Set("action", b.verb)
	b.filter.Set("all", "1") // jobs are looked at
	var found outcome
	for _, b.base = range b.ServerURLs() { // the first that answers
		if found, err = b.ask(ctx, http.MethodGet, "/bulk?"+b.filter.Encode(), nil); !errors.Is(err, lokt.ErrUnavailable) {
			break
		}
	}
	switch {
	case err != nil:
		return err
	case found.Count == 0:
		return b.Answer(found, "no job that this can be done to: %s", found.Which)
	}
	if err := b.confirm(&found); err != nil {
		return err
	}
	b.filter.Set("confirm", fmt.Sprint(b.count))
	b.filter.Set("reason", reason)
	begun, err := b.ask(ctx, http.MethodPost, "/bulk", b.filter)
	if errors.Is(err, errNoAnswer) {
		return app.Hint(err, "it may have been told, and begin within a minute: see %s/jobs", app.WithoutUser(b.base))
	}
	if err != nil {
		return err
	}
	return b.wait(ctx, begun.Next)
}

// confirm has the number of jobs typed, unless it was given.
func (b *bulk) confirm(found *outcome) error {
	if b.count != 0 {
		return nil
	}
	if in, ok := b.In.(*os.File); !ok || b.JSON || !app.IsTerminal(in) {
		return app.Usagef("this would %s %d jobs (%s): confirm it with --count %d", b.verb, found.Count, found.Which, found.Count)
	}
	fmt.Fprint(b.Err, app.Printable(fmt.Sprintf("lokt: this will %s %d jobs (%s). Type %d to confirm: ", b.verb, found.Count, found.Which, found.Count)))
	line, _ := bufio.NewReader(b.In).ReadString('\n') // no line is no number
	if strings.TrimSpace(line) != fmt.Sprint(found.Count) {
		return app.Usagef("%q is not %d: nothing was done", strings.TrimSpace(line), found.Count)
	}
	b.count = found.Count
	b.filter.Set("set", found.Set)
	return nil
}

// patience is how long a server that does not answer is asked again what came of a run.
const patience = 2 * time.Minute

// wait waits for the end of a run, and undoes it if a signal asks for that in time.
func (b *bulk) wait(ctx context.Context, at string) error {
	signals := guard.Notify()
	interrupted, stop := signals.Context(ctx)
	defer stop()
	told, answered, away := false, time.Now(), false
	begins := answered.Add(30 * time.Second) // as long as it is not told
	for {
		r, err := b.ask(interrupted, http.MethodGet, at, nil)
		out := passing(err)
		switch {
		case interrupted.Err() != nil:
		case out && time.Since(answered) < patience:
			if !away {
				b.Tell("warning: trying again: %v", err)
			}
		case err != nil:
			return app.Hint(fmt.Errorf("what came of it is not known: %w", err), "a server that was not started again goes on: see %s", app.WithoutUser(b.base)+at)
		case r.Undone:
			return app.Worded(lokt.ErrNotFound, "somebody has undone it: nothing was changed")
		case !r.Ended.IsZero() && r.Failed > 0:
			return fmt.Errorf("%d of %d jobs were done, and %d failed: %s", r.Done, r.Count, r.Failed, r.Problem)
		case !r.Ended.IsZero():
			return b.Answer(r, "%s: %d of %d jobs", b.verb, r.Done, r.Count)
		case !told:
			b.Tell("it begins in %s, and Ctrl-C undoes it until then", app.Short(time.Until(r.Begins).Round(time.Second)))
			told, begins = true, r.Begins
		}
		if away = out; !out {
			answered = time.Now()
		}
		if !app.Pause(interrupted, time.Second) {
			break
		}
	}
	again, enough := signals.Context(ctx)
	defer enough()
	if err := b.undo(again, at, begins); err != nil {
		b.Tell("it goes on, as far as is known: %v", err)
	} else {
		b.Tell("undone: nothing was changed")
	}
	by := new(guard.SignalError)
	_ = errors.As(context.Cause(interrupted), &by) // nothing else ends it
	return app.Exit(by.Code())
}

// undo tries to undo a run until that is answered, the run has begun, or ctx ends.
func (b *bulk) undo(ctx context.Context, at string, begins time.Time) error {
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := b.ask(try, http.MethodPost, at+"/undo", url.Values{})
		cancel()
		if !passing(err) || !time.Now().Before(begins) || !app.Pause(ctx, time.Second) {
			return err
		}
	}
}

// passing reports whether it may help to ask again.
func passing(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, httpapi.ErrRateLimited)
}

// errNoAnswer is an ErrUnavailable that no dashboard has said: whether it heard the request is not known.
var errNoAnswer = fmt.Errorf("%w", lokt.ErrUnavailable)

// ask asks the server's dashboard, for what a page of it shows.
func (b *bulk) ask(ctx context.Context, method, path string, form url.Values) (answer outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(b.base, "/")+path, strings.NewReader(form.Encode()))
	if err != nil {
		return answer, app.Usage(err)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if b.auth != "" {
		r.Header.Set("Authorization", b.auth)
	}
	resp, err := b.http.Do(r)
	if err != nil {
		return answer, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return answer, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	if resp.StatusCode == http.StatusOK {
		err = lokt.Unmarshal(body, &answer)
		return answer, err
	}
	var problem struct {
		Error string `json:"error"`
	}
	if lokt.Unmarshal(bytes.TrimSpace(body), &problem) != nil || problem.Error == "" {
		return answer, fmt.Errorf("%w: %s answers %s", errNoAnswer, app.WithoutUser(b.base), resp.Status)
	}
	kind := map[int]error{
		http.StatusUnauthorized: httpapi.ErrUnauthenticated, http.StatusForbidden: httpapi.ErrForbidden,
		http.StatusUnprocessableEntity: lokt.ErrInvalid, http.StatusNotFound: lokt.ErrNotFound, http.StatusTooManyRequests: httpapi.ErrRateLimited,
	}[resp.StatusCode]
	if kind == nil {
		kind = lokt.ErrUnavailable
	}
	return answer, app.Worded(kind, "%s", problem.Error)
}
