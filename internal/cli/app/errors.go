package app

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Exit codes.
const (
	ExitOK       = 0
	ExitError    = 1
	ExitBlocked  = 2 // held, frozen or timed out
	ExitNotFound = 3
	ExitNotOwner = 4
	ExitUsage    = 64
)

// UsageError is a command line that makes no sense.
type UsageError struct{ err error }

func (e *UsageError) Error() string { return e.err.Error() }
func (e *UsageError) Unwrap() error { return e.err }

// Usage makes err a usage error.
func Usage(err error) error { return &UsageError{err} }

// Usagef returns a usage error.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// SilentError ends the program with a code when everything has been said.
type SilentError struct{ Code int }

func (e *SilentError) Error() string { return fmt.Sprintf("exit %d", e.Code) }

// Exit returns an error that ends the program with the code, or nil for 0.
func Exit(code int) error {
	if code == ExitOK {
		return nil
	}
	return &SilentError{code}
}

// HintError adds what to do to an error.
type HintError struct {
	err  error
	Hint string
}

func (e *HintError) Error() string { return e.err.Error() + "; " + e.Hint }
func (e *HintError) Unwrap() error { return e.err }

func Hint(err error, format string, args ...any) error {
	return &HintError{err, fmt.Sprintf(format, args...)}
}

// Classify returns the stable code and the exit code of an error.
func Classify(err error) (code string, exit int) {
	var usage *UsageError
	switch {
	case !errors.As(err, &usage):
	case errors.Is(err, lokt.ErrInvalid):
		return "invalid", ExitUsage
	default:
		return "usage", ExitUsage
	}
	for _, known := range []struct {
		is   error
		code string
		exit int
	}{
		{lokt.ErrInvalid, "invalid", ExitError},
		{lokt.ErrFrozen, "frozen", ExitBlocked},
		{lokt.ErrHeld, "held", ExitBlocked},
		{lokt.ErrFull, "full", ExitBlocked},
		{jobs.ErrJobNotFound, jobs.Code(err), ExitNotFound},
		{jobs.ErrConflict, jobs.Code(err), ExitError},
		{lokt.ErrNotFound, "not_found", ExitNotFound},
		{lokt.ErrNotOwner, "not_owner", ExitNotOwner},
		{lokt.ErrDamaged, "damaged", ExitError},
		{lokt.ErrUnavailable, "unavailable", ExitError},
	} {
		if errors.Is(err, known.is) {
			return known.code, known.exit
		}
	}
	return "internal", ExitError
}

// Report tells of an error, in the form that was asked for, and returns the exit code.
func (a *App) Report(err error) int {
	code, exit := Classify(err)
	known, advice := Explain(err)
	code = cmp.Or(known, code)
	if advice != "" {
		err = Hint(err, "%s", advice)
	}
	err = a.Reached(err)
	if a.JSON || a.JSONErrors {
		_ = a.Print(errorBody(code, err.Error())) // who cannot be told of an error cannot be told of another
		return exit
	}
	text := err.Error()
	if code == "usage" {
		text += " (see `" + cmp.Or(a.Help, "lokt help") + "`)"
	}
	a.Tell("%s", text)
	return exit
}

// Tell writes a line for people.
func (a *App) Tell(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Fprintln(a.Err, "lokt: "+strings.ReplaceAll(Printable(line), "\n", "\nlokt: "))
}

// Printable replaces what could confuse a terminal: other people's names come from files.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
}

// Finish reports how a command ended and returns the exit code for it.
func (a *App) Finish(err error) int {
	var e *SilentError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &e):
		return e.Code
	}
	return a.Report(err)
}

// errorBody is how an error is told to programs.
func errorBody(code, message string) any {
	return map[string]any{"error": map[string]string{"code": code, "message": message}}
}

// wordedError says in other words what an error is.
type wordedError struct {
	err  error
	text string
}

func (e *wordedError) Error() string { return e.text }
func (e *wordedError) Unwrap() error { return e.err }

func Worded(err error, format string, args ...any) error {
	return &wordedError{err, fmt.Sprintf(format, args...)}
}
