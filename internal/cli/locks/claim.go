package locks

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/machine"
	"github.com/lokt-dev/lokt/internal/cli/wait"
	"github.com/lokt-dev/lokt/internal/guard"
)

// share says with whom a claim shares.
type share struct {
	shared bool
	slots  int // 0 unless they are given
	weight lokt.Weight

	pressure machine.Pressure // of commands
}

func (f *share) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.shared, "shared", false, "share with others that share; exclude those that do not")
	machine.SlotsFlag(cmd, &f.slots)
	machine.WeightFlag(cmd, &f.weight)
}

func (f *share) check(cmd *cobra.Command) error {
	switch given := cmd.Flags().Changed("slots"); {
	case given && f.slots < 1:
		return app.Usagef("--slots %d leaves room for nobody", f.slots)
	case f.slots >= lokt.Shared:
		return app.Usagef("--slots %d is no limit: use --shared", f.slots)
	case given && f.shared:
		return app.Usagef("--shared has no limit and --slots sets one: give one of them")
	}
	return nil
}

// shareFlags returns the flags as they were given.
func (f *share) shareFlags() (flags []string) {
	switch {
	case f.shared:
		flags = []string{"--shared"}
	case f.slots > 0:
		flags = []string{"--slots", strconv.Itoa(f.slots)}
	}
	return append(flags, machine.Flags(f.weight, &f.pressure)...)
}

func (f *share) limit() int {
	if f.shared || f.weight.Takes > 0 && f.slots == 0 {
		return lokt.Shared
	}
	return max(f.slots, lokt.Exclusive)
}

// claimFlags are the flags that guard and lock share: what to ask for.
type claimFlags struct {
	share
	wait.Flags
	ttl, maxHold time.Duration
	priority     int
	meta         []string
	metadata     map[string]string // the same

	guard bool // of a guard
}

func (f *claimFlags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.DurationVar(&f.ttl, "ttl", 0, "free the lock if it is not renewed for this long, such as 90s or 5m (at least 1s)")
	f.Flags.Bind(cmd, "the lock is free")
	f.share.bind(cmd)
	fs.IntVar(&f.priority, "priority", 0, "place in the queue: higher first")
	fs.DurationVar(&f.maxHold, "max-hold", 0, "free the lock after this long, renewed or not")
	fs.StringArrayVar(&f.meta, "meta", nil, "note KEY=VALUE in the lock's record; may be repeated")
}

// check finds out what the command line means, before anything is touched.
func (f *claimFlags) check(a cmd, cmd *cobra.Command) (err error) {
	if err := f.share.check(cmd); err != nil {
		return err
	}
	if f.ttl, err = a.TTL(f.ttl); err != nil {
		return err
	}
	if err := f.Flags.Check(cmd); err != nil {
		return err
	}
	if f.maxHold < 0 || f.maxHold > 0 && f.maxHold < time.Millisecond {
		return app.Usagef("--max-hold %v is too short", f.maxHold)
	}
	if text := f.pressure.Text(); text != "" {
		f.meta = append(f.meta, machine.MetaPressure+"="+text)
	}
	for _, kv := range f.meta {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return app.Usagef("--meta %q is not KEY=VALUE", kv)
		}
		if f.metadata == nil {
			f.metadata = map[string]string{}
		}
		f.metadata[k] = v
	}
	return nil
}

// waitText returns the words for what a claim waits for. They name the directory of the locks if it is not the repository's: others
// may look elsewhere.
func waitText(b *app.Backend) func(*lokt.BlockedError) string {
	where := ""
	if b.Store != nil && b.Root.Method != app.MethodGit {
		where = ", in " + b.Root.Path
	}
	return func(e *lokt.BlockedError) string { return blockedText(b, e) + where }
}

// denied reports a claim that was not granted, and returns what ends the program with the right code. It points to the
// command that explains this very claim.
func (a cmd) denied(b *app.Backend, err error, code int, f *claimFlags) error {
	var signal *guard.SignalError
	var blocked *lokt.BlockedError
	switch {
	case errors.As(err, &signal):
		return f.Left(a.App, signal)
	case errors.Is(err, lokt.ErrFull):
		a.Report(err)
		return app.Exit(code)
	case !errors.As(err, &blocked):
		return err
	}
	if f == nil {
		f = &claimFlags{Flags: wait.Flags{Wait: true}} // there is no --wait to point to
	}
	text := wait.Outcome(blocked, waitText(b)(blocked))
	ticket, line := f.Ticket()
	var known *app.HintError
	switch fz := blocked.Freeze; {
	case errors.As(err, &known): // why waiting would not help
		text += "; " + known.Hint
	case len(blocked.Cycle) > 0 || fz != nil && fz.Damaged != "":
	default:
		do := "; "
		if !f.Wait {
			do += "wait with --wait, or "
		}
		if ticket != "" {
			do += wait.GoOn(line) + ", or "
		}
		if fz != nil && a.Asker().Same(fz.Owner) {
			do += "end the freeze with: " + a.CommandLine("unfreeze", blocked.Name) + ", or "
		}
		text += do + "see: " + a.whyLine(blocked.Name, f)
	}
	if a.JSON {
		v := viewBlocked(b, blocked, text)
		v.Ticket, v.GoOn = ticket, line
		return errors.Join(a.Print(v), app.Exit(code))
	}
	a.Tell("%s", text)
	return app.Exit(code)
}

// whyLine returns the command that explains a claim with these flags.
func (a cmd) whyLine(name string, f *claimFlags) string {
	flags := f.shareFlags()
	if f.guard {
		flags = append([]string{"--guard"}, flags...)
	}
	return a.CommandLine("why", name, flags...)
}

// metaCommand is the note that says what runs under a lock.
const metaCommand = "command"

const (
	letters = "abcdefghijklmnopqrstuvwxyz"
	inNames = letters + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-" // of programs
)

// isPlain reports whether such a note is repeated in sentences, which an agent may read: anybody can have noted anything.
func isPlain(note string) bool {
	program, argument, more := strings.Cut(note, " ")
	return program != "" && len(program) <= 64 && strings.Trim(program, inNames) == "" && (!more || isSubcommand(argument))
}

// isSubcommand reports whether a first argument is no secret, as in "make build".
func isSubcommand(argument string) bool {
	return argument != "" && argument[0] != '-' && len(argument) <= 31 && strings.Trim(argument, letters+"-") == ""
}

// shown is what others are told of a command: the program and its subcommand. What comes after may be secret.
func shown(command []string) string {
	text := strings.ToValidUTF8(filepath.Base(command[0]), "?")
	if len(command) > 1 && isSubcommand(command[1]) {
		text += " " + command[1]
	}
	return text
}
