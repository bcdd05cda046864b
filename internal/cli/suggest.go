package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lokt-dev/lokt"
)

// commandLine returns the line to type for a command about the named lock, or about none, in the directory of locks or on
// the server that this one was told to use.
func (a *app) commandLine(command, name string, flags ...string) string {
	words := []string{"lokt", command}
	if a.rootFlag != "" {
		flags = append(flags, "--root", a.rootFlag)
	}
	if a.serverGiven {
		flags = append(flags, "--server", withoutUser(a.serverFlag))
	}
	if name == "" {
		words = append(words, flags...)
	} else if !strings.HasPrefix(name, "-") {
		words = append(append(words, name), flags...)
	} else { // a name that would be taken for a flag
		words = append(append(words, flags...), "--", name)
	}
	for i, w := range words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

// quoted returns a word as a POSIX shell takes it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/=:@%+,", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// repairable adds to an error about a record that cannot be read how to remove it.
func (a *app) repairable(err error, name string) error {
	if !errors.Is(err, lokt.ErrDamaged) {
		return err
	}
	return hint(err, "nobody gets this lock until the record is removed: %s", a.commandLine("unlock", name, "--force"))
}

// sameAgent says how to be taken for the owner of what others than the caller own.
const sameAgent = "if it is yours, taken in another session, set LOKT_OWNER or LOKT_AGENT_ID to what they were then"

// wordedError says in other words what an error is.
type wordedError struct {
	err  error
	text string
}

func (e *wordedError) Error() string { return e.text }
func (e *wordedError) Unwrap() error { return e.err }

func worded(err error, format string, args ...any) error {
	return &wordedError{err, fmt.Sprintf(format, args...)}
}
