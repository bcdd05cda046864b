package app

import (
	"errors"
	"strings"

	"github.com/lokt-dev/lokt"
)

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
		words[i] = Quoted(w)
	}
	return strings.Join(words, " ")
}

// Quoted returns a word as a POSIX shell takes it.
func Quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/=:@%+,", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Repairable adds to an error about a record that cannot be read how to remove it.
func (a *App) Repairable(err error, name string) error {
	if !errors.Is(err, lokt.ErrDamaged) {
		return err
	}
	return Hint(err, "nobody gets this lock until the record is removed: %s", a.ByForce("unlock", name))
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
