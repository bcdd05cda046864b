package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Exit codes.
const (
	exitOK       = 0
	exitError    = 1
	exitBlocked  = 2 // held, frozen or timed out
	exitNotFound = 3
	exitNotOwner = 4
	exitUsage    = 64
)

// usageError is a command line that makes no sense.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// silentError ends the program with a code when everything has been said.
type silentError struct{ code int }

func (e *silentError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// exit returns an error that ends the program with the code, or nil for 0.
func exit(code int) error {
	if code == exitOK {
		return nil
	}
	return &silentError{code}
}

// hintError adds what to do to an error.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() + "; " + e.hint }
func (e *hintError) Unwrap() error { return e.err }

func hint(err error, format string, args ...any) error {
	return &hintError{err, fmt.Sprintf(format, args...)}
}

// classify returns the stable code and the exit code of an error.
func classify(err error) (code string, exit int) {
	var usage *usageError
	switch {
	case errors.As(err, &usage):
		return "usage", exitUsage
	case errors.Is(err, lokt.ErrInvalid):
		return "invalid", exitError
	case errors.Is(err, lokt.ErrFrozen):
		return "frozen", exitBlocked
	case errors.Is(err, lokt.ErrHeld):
		return "held", exitBlocked
	case errors.Is(err, lokt.ErrFull):
		return "full", exitBlocked
	case errors.Is(err, jobs.ErrJobNotFound):
		return jobs.Code(err), exitNotFound
	case errors.Is(err, jobs.ErrConflict):
		return jobs.Code(err), exitError
	case errors.Is(err, lokt.ErrNotFound):
		return "not_found", exitNotFound
	case errors.Is(err, lokt.ErrNotOwner):
		return "not_owner", exitNotOwner
	case errors.Is(err, lokt.ErrDamaged):
		return "damaged", exitError
	case errors.Is(err, lokt.ErrUnavailable):
		return "unavailable", exitError
	}
	return "internal", exitError
}

// report tells of an error, in the form that was asked for, and returns the exit code.
func (a *app) report(err error) int {
	code, exit := classify(err)
	known, advice := explain(err)
	code = cmp.Or(known, code)
	if advice != "" {
		err = hint(err, "%s", advice)
	}
	err = a.reached(err)
	if a.json || a.jsonErrors {
		body := map[string]any{"error": map[string]any{"code": code, "message": err.Error()}}
		_ = json.NewEncoder(a.Out).Encode(body) // who cannot be told of an error cannot be told of another
		return exit
	}
	text := err.Error()
	if exit == exitUsage {
		text += " (see `" + cmp.Or(a.help, "lokt help") + "`)"
	}
	a.tell("%s", text)
	return exit
}

// tell writes a line for people.
func (a *app) tell(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Fprintln(a.Err, "lokt: "+strings.ReplaceAll(printable(line), "\n", "\nlokt: "))
}

// printable replaces what could confuse a terminal: other people's names come from files.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
}
