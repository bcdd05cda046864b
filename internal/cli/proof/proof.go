// Package proof has the parts of lokt audit that hand on a history and judge one.
package proof

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"

	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/history"
)

// Bundle writes the events to a new file, redacted, one a line. Of what is no event it tells nothing.
func Bundle(a *app.App, path string, keep []string, events iter.Seq2[audit.Entry, error]) (err error) {
	for _, part := range keep {
		if !slices.Contains([]string{"names", "times", "tokens", "paths"}, part) {
			return app.Usagef("--keep %s: there are names, times, tokens and paths", part)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, out, redact := 0, json.NewEncoder(f), history.Redactor(keep...)
	for e, err := range events {
		if garbage := (*audit.GarbageError)(nil); errors.As(err, &garbage) {
			continue
		}
		if err == nil {
			err = out.Encode(redact(e))
		}
		if err != nil {
			return fmt.Errorf("%s is not complete: %w", path, err)
		}
		n++
	}
	return a.Answer(map[string]int{"events": n}, "%d events written to %s; judge them with: %s", n, path, a.CommandLine("audit", "", "--check", path))
}

// Check judges the events in a file. The exit code is 1 if two of them cannot both be right.
func Check(a *app.App, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in, j := json.NewDecoder(f), history.Judge{}
	in.UseNumber()
	for e := (audit.Entry{}); err == nil; e = (audit.Entry{}) {
		if err = in.Decode(&e); err == nil && e.Event == "" {
			err = errors.New("the next is none")
		} else if err == nil {
			j.Take(e)
		}
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s, after %d events: %w", path, j.Events, err)
	}
	end := app.Exit(app.ExitOK)
	for _, found := range j.Findings {
		if end = app.Exit(app.ExitError); !a.JSON {
			first, _ := json.Marshal(found.First) // they were read
			second, _ := json.Marshal(found.Second)
			a.Say("broken: %s, by\n  %s\n  %s", found.Broken, first, second)
		}
	}
	return errors.Join(a.Answer(j, "%d events, %d grants, not judged in full: %d; broken: %d", j.Events, j.Grants, j.Unknown, len(j.Findings)), end)
}
