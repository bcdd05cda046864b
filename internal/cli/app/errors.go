package app

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/quote"
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

// HintError is an error in other words, or with what to do about it.
type HintError struct {
	err        error
	text, Hint string
}

func (e *HintError) Error() string { return strings.TrimSuffix(e.text+"; "+e.Hint, "; ") }
func (e *HintError) Unwrap() error { return e.err }

// Hint adds what to do to an error.
func Hint(err error, format string, args ...any) error {
	return &HintError{err, err.Error(), fmt.Sprintf(format, args...)}
}

// Worded says in other words what an error is.
func Worded(err error, format string, args ...any) error {
	return &HintError{err, fmt.Sprintf(format, args...), ""}
}

// Classify returns the stable code and the exit code of an error, and what can be done about it if that is known.
func Classify(err error) (code string, exit int, advice string) {
	var notRun *guard.NotFoundError
	switch {
	case errors.As(err, &notRun):
		return "command", notRun.Code, ""
	case !errors.As(err, new(*UsageError)):
	case errors.Is(err, lokt.ErrInvalid):
		return "invalid", ExitUsage, ""
	default:
		return "usage", ExitUsage, ""
	}
	for _, known := range []struct {
		is     error
		code   string
		exit   int
		advice string
	}{
		{httpapi.ErrUnauthenticated, "unauthenticated", ExitError, "set LOKT_SERVER_TOKEN, or LOKT_TOKEN_FILE, to a token that the server knows"},
		{httpapi.ErrForbidden, "forbidden", ExitError, "ask whoever runs the server for a token that may do this"},
		{httpapi.ErrRateLimited, "rate_limited", ExitError, "ask less often, or ask whoever runs the server for a higher limit"},
		{httpapi.ErrBodyTooLarge, "body_too_large", ExitError, "keep large data elsewhere and say where it is, or raise the server's --max-body"},
		{httpapi.ErrNoEvents, "no_events", ExitError, "the server's store keeps none: see the log of whoever runs it"},
		{lokt.ErrInvalid, "invalid", ExitError, ""},
		{lokt.ErrLost, "lost", guard.ExitLost, "nothing was run"}, // before the reason, which it wraps
		{lokt.ErrFrozen, "frozen", ExitBlocked, ""},
		{lokt.ErrHeld, "held", ExitBlocked, ""},
		{lokt.ErrFull, "full", ExitBlocked, ""},
		{jobs.ErrJobNotFound, jobs.Code(err), ExitNotFound, ""},
		{jobs.ErrConflict, jobs.Code(err), ExitError, ""},
		{lokt.ErrNotFound, "not_found", ExitNotFound, ""},
		{lokt.ErrNotOwner, "not_owner", ExitNotOwner, ""},
		{lokt.ErrDamaged, "damaged", ExitError, ""},
		{lokt.ErrUnavailable, "unavailable", ExitError, unreachable(err)},
	} {
		if errors.Is(err, known.is) {
			return known.code, known.exit, known.advice
		}
	}
	return "internal", ExitError, ""
}

// whoseFiles is what can be done about a file that this user may not use.
const whoseFiles = "lokt doctor says whose the files are, and what to do"

// unreachable says what can be done about a server that does not do what it is asked; nothing if it does not answer.
func unreachable(err error) string {
	switch {
	case errors.As(err, new(*fs.PathError)) && errors.Is(err, fs.ErrPermission): // and not a network that lets nobody through
		return whoseFiles
	case httpapi.Answered(err):
		return "the server is there, but its store is not: see its log, or try again later"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "name the certificate of the authority that signed the server's with LOKT_CA_FILE"
	case errors.As(err, new(x509.HostnameError)), errors.As(err, new(x509.CertificateInvalidError)):
		return "name the server as its certificate does, or renew the certificate"
	case errors.As(err, new(tls.RecordHeaderError)), errors.Is(err, http.ErrSchemeMismatch):
		return "it speaks no TLS: name it by http:// instead of https://"
	}
	return ""
}

// Report tells of an error, in the form that was asked for, and returns the exit code.
func (a *App) Report(err error) int {
	code, exit, advice := Classify(err)
	if advice != "" {
		err = Hint(err, "%s", advice)
	}
	err = a.Reached(err)
	body := map[string]any{"error": map[string]string{"code": code, "message": err.Error()}}
	if (a.JSON || a.JSONErrors) && a.Print(body) == nil {
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

// Finish reports how a command ended and returns the exit code for it.
func (a *App) Finish(err error) int {
	var e *SilentError
	var signal *guard.SignalError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &signal):
		return signal.Code()
	case errors.As(err, &e):
		return e.Code
	}
	return a.Report(err)
}

// CommandLine returns the line to type for a command about the named lock, or about none, in the directory of locks or on
// the server that this one was told to use.
func (a *App) CommandLine(command, name string, flags ...string) string {
	words := []string{"lokt", command}
	if a.RootFlag != "" {
		flags = append(flags, "--root", a.RootFlag)
	}
	if a.ServerGiven {
		flags = append(flags, "--server", WithoutUser(a.ServerFlag))
	}
	if name == "" {
		words = append(words, flags...)
	} else if !strings.HasPrefix(name, "-") {
		words = append(append(words, name), flags...)
	} else { // a name that would be taken for a flag
		words = append(append(words, flags...), "--", name)
	}
	for i, w := range words {
		words[i] = quote.Word(w)
	}
	return strings.Join(words, " ")
}

// Repairable adds to an error about a record that cannot be read how to remove it, unless it says so of another already.
func (a *App) Repairable(err error, name string) error {
	if known := (*HintError)(nil); !errors.Is(err, lokt.ErrDamaged) || errors.As(err, &known) {
		return err
	}
	return Hint(err, "nobody gets this lock until the record is removed: %s", a.Remove(name))
}

// Remove returns the line to type to have a record removed that cannot be read.
func (a *App) Remove(name string) string {
	if len(a.ServerURLs()) > 0 {
		return "loktd check   # by whoever runs the server, whose page on operations says how to give a lock up"
	}
	return a.ByForce("unlock", name)
}

// ByForce returns the line to type to have it by force, unless a program asks that lokt prime tells never to.
func (a *App) ByForce(command, name string) string {
	if a.Agent() {
		return "that is for a person to do"
	}
	return a.CommandLine(command, name, "--force")
}

// OrForce is the last of what can be done, unless a program asks that lokt prime tells never to.
func (a *App) OrForce() string {
	if a.Agent() {
		return ""
	}
	return ", or use --force"
}

// SameAgent says how to be taken for the owner of what others than the caller own.
const SameAgent = "if it is yours, taken in another session, set LOKT_OWNER or LOKT_AGENT_ID to what they were then"
