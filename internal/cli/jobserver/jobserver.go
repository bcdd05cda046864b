// Package jobserver hands out the CPUs of this machine to the builds on it, by the protocol of GNU make's jobserver. Each build
// has a server of its own, which holds a slot of one lock for each token that the build has: whatever dies, the kernel gives
// its slots back. It is linked into a program of its own, which lokt runs.
//
// Builds inherit two pipes for the tokens, as make did before it had paths for them: every make from 4.0 on, and cargo, take them.
package jobserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/machine"
)

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{{Name: "jobserver", Build: newJobserver, Place: app.Nowhere}}
}

// Main runs the command line of this process and returns its exit code.
func Main(args []string) int { return app.Main(Commands(), args[1:]) }

// Tree returns the command, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System()).Tree(nil) }

// lockName is the lock whose slots are the tokens.
const lockName = "cpu"

func newJobserver(a *app.App) *cobra.Command {
	tokens := 0
	cmd := app.Describe("jobserver", &cobra.Command{Args: func(cmd *cobra.Command, args []string) error {
		switch {
		case cmd.ArgsLenAtDash() != 0 || len(args) == 0:
			return app.Usagef("put the build behind --: lokt jobserver -- make")
		case tokens < 0 || tokens >= lokt.Shared:
			return app.Usagef("--tokens %d is no number of tokens", tokens)
		case a.ServerFlag != "":
			return app.Usagef("--server: the CPUs of this machine are handed out on this machine")
		}
		return nil
	}, RunE: func(_ *cobra.Command, args []string) error { return run(a, tokens, args) }})
	cmd.Flags().IntVar(&tokens, "tokens", 0, "how many jobs all builds together run at once (default: the cores of this machine, or of its cgroup)")
	return cmd
}

// run runs a build with the tokens that it is given.
func run(a *app.App, tokens int, build []string) error {
	path, err := guard.Find(build[0])
	if err != nil {
		return err
	}
	build, most := withoutJobs(build)
	if strings.Contains(a.Getenv("MAKEFLAGS"), "--jobserver-") { // it has tokens already
		return syscall.Exec(path, build, a.Environ())
	}
	if a.ServerGiven = true; a.RootFlag == "" { // the machine's builds share them, whatever the repository keeps
		a.RootFlag = app.MethodUser
	}
	b, err := a.Open(lockName)
	if err != nil {
		return err
	}
	owner, err := a.Claimant(b)
	if err != nil {
		return err
	}
	k, err := lokt.NewLocker(b, owner, lokt.LockerOptions{})
	if err != nil {
		return err
	}
	tokens = cmp.Or(tokens, machine.Machine{}.Cores())
	t := lokt.Options{Wait: -1, Limit: tokens, Strict: true, TTL: lokt.NoTTL, ManualHeartbeat: true, Process: &owner.Process}
	signals := guard.Notify()
	defer func() { _, _ = k.ReleaseAll(context.Background()) }() // what is left ends with this process
	if err := first(a, k, t, signals); err != nil {
		return err
	}
	s, auth, err := newServer(b, k, t, min(most, tokens)-1)
	if err != nil {
		return err
	}
	defer s.close()
	env := slices.DeleteFunc(slices.Clone(a.Environ()), func(kv string) bool { return strings.HasPrefix(kv, "MAKEFLAGS=") })
	flags, variables, has := strings.Cut(a.Getenv("MAKEFLAGS"), " -- ")
	flags += fmt.Sprintf(" -j%d --jobserver-auth=%s", min(most, tokens), auth)
	if has {
		flags += " -- " + variables
	}
	code, err := guard.Run(guard.Command{
		Path: path, Args: build, Env: append(env, "MAKEFLAGS="+flags), Inherit: b.LiveFile(), Bound: true,
	}, nil, signals)
	return cmp.Or(err, app.Exit(code))
}

// first waits for the token that every build has without asking: that of its first job. It comes before further ones of others.
func first(a *app.App, k *lokt.Locker, o lokt.Options, signals *guard.Signals) error {
	ctx, stop := signals.Context(context.Background())
	defer stop()
	o.Priority = 1
	long := time.AfterFunc(time.Second, func() {
		a.Tell("waiting for one of %d CPU tokens; see: %s", o.Limit, a.CommandLine("status", lockName))
	})
	_, err := k.Acquire(ctx, lockName, o)
	long.Stop()
	if signal, ok := errors.AsType[*guard.SignalError](err); ok {
		return app.Exit(signal.Code())
	}
	return err
}

// isMake reports whether a program of that name is GNU make, whatever others end with make.
func isMake(name string) bool { return name == "make" || name == "gmake" || name == "remake" }

// jobsFlag is the flag, which may stand behind others that are letters.
var jobsFlag = regexp.MustCompile(`^(?:(-[BLRSbdeikmnpqrstvw]*)j|--jobs=?)(\d*)$`)

// withoutJobs takes from a command line of make how many jobs it may run at once, which would make it serve tokens of its own,
// and returns the number apart.
func withoutJobs(build []string) (rest []string, most int) {
	if most = lokt.Shared; !isMake(filepath.Base(build[0])) {
		return build, most
	}
	for i := 0; i < len(build); i++ {
		f := jobsFlag.FindStringSubmatch(build[i])
		if f == nil {
			rest = append(rest, build[i])
			continue
		}
		if len(f[1]) > 1 {
			rest = append(rest, f[1])
		}
		n, err := strconv.Atoi(f[2])
		if f[2] == "" && i+1 < len(build) {
			if n, err = strconv.Atoi(build[i+1]); err == nil {
				i++
			}
		}
		if err == nil && n > 0 {
			most = n
		}
	}
	return rest, most
}
