// Package daemon is loktd: it reads the configuration, opens the stores, serves the API over them, and ends in order.
//
// What was answered with success is in the store. Where authentication is asked for, nobody is served without it. The
// daemon ends within Config.Shutdown, and a little, of a signal. Its logs and metrics show no token and no lease ID.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/version"
)

// Exit codes.
const (
	exitError = 1
	exitUsage = 64 // EX_USAGE of sysexits.h
)

// Streams are what the program writes.
type Streams struct{ Out, Err io.Writer }

// System returns the streams of this process.
func System() Streams { return Streams{Out: os.Stdout, Err: os.Stderr} }

// Main runs the program and returns its exit code.
func Main(args []string, s Streams) int {
	if len(args) > 0 && args[0] == "--version" {
		args = append([]string{"version"}, args[1:]...)
	}
	root := Tree(s)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(s.Err, "loktd: %s\n", strings.TrimRight(line, "\n"))
	}
	if usage := new(usageError); errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

// run is a command.
type run func(ctx context.Context, s Streams, c *Config, args []string) error

// Tree returns the command tree.
func Tree(s Streams) *cobra.Command {
	c := &Config{}
	root := &cobra.Command{
		Short: "Keep locks and jobs for many hosts",
		Long: "loktd keeps locks and jobs for many hosts, and serves them over HTTP.\n\n" +
			"Without a command it serves. Each setting is a flag or an environment variable; the flag wins.\n" +
			"Exit codes: 0 in order, 1 failed, 2 ended by a defect of loktd, 64 called wrongly.",
		Example:       "  loktd --store sqlite:/var/lib/loktd/loktd.db\n  loktd token create build --tokens /etc/lokt/tokens",
		SilenceErrors: true, SilenceUsage: true,
	}
	add := func(to, cmd *cobra.Command, use string, args cobra.PositionalArgs, do run) {
		cmd.Use, cmd.Args = use, args
		cmd.RunE = func(cmd *cobra.Command, args []string) error { return do(cmd.Context(), s, c, args) }
		if to != nil {
			to.AddCommand(cmd)
		}
	}
	add(nil, root, "loktd", noCommand, runServe)
	add(root, &cobra.Command{Short: "Serve requests until a signal ends it; the default"}, "serve", takes(0), runServe)
	add(root, &cobra.Command{Short: "Check the configuration, and the files that it names, without serving"}, "check", takes(0), runCheck)
	add(root, &cobra.Command{Short: "Write a copy of the store to a new file, whether or not the daemon runs"}, "backup PATH", takes(1), runBackup)
	add(root, &cobra.Command{Short: "Ask the daemon at --listen whether it is ready"}, "health", takes(0), runHealth)
	shown := &cobra.Command{Short: "Show the version, and what this program was built from"}
	asJSON := shown.Flags().Bool("json", false, "as JSON")
	add(root, shown, "version", takes(0), func(_ context.Context, s Streams, _ *Config, _ []string) error { return showVersion(s, *asJSON) })
	token := &cobra.Command{Short: "Manage the file of bearer tokens"}
	add(root, token, "token", noCommand, func(context.Context, Streams, *Config, []string) error {
		return usagef("say what to do: loktd token create NAME, loktd token list, loktd token revoke NAME")
	})
	create, o := &cobra.Command{Short: "Make a token and show it, this once"}, &tokenOptions{}
	o.bind(create.Flags())
	add(token, create, "create NAME", takes(1), o.create)
	add(token, &cobra.Command{Short: "Show the tokens that are not revoked"}, "list", takes(0), listTokens)
	add(token, &cobra.Command{Short: "End a token"}, "revoke NAME", takes(1), revokeToken)

	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() { // cobra's own, which end well whatever they are given
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				about, rest, _ := root.Find(args)
				return noCommand(about, rest)
			}
		case "completion":
			cmd.Args = noCommand
			cmd.RunE = func(*cobra.Command, []string) error { return usagef("name one shell: bash, zsh, fish, powershell") }
			for _, shell := range cmd.Commands() {
				shell.Args = takes(0)
			}
		}
	}

	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", "FlagUsagesWrapped 110"))
	settings := pflag.NewFlagSet("", pflag.ContinueOnError)
	settings.SortFlags = false
	c.bind(settings)
	unknown, wrong := fromEnvironment(settings, os.Environ())
	root.PersistentFlags().SortFlags = false
	root.PersistentFlags().AddFlagSet(settings)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Name() == "help" || cmd.HasParent() && cmd.Parent().Name() == "completion" || strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
			return nil
		}
		for _, name := range unknown {
			fmt.Fprintf(s.Err, "loktd: warning: %s is set and means nothing to this version; see loktd --help\n", name)
		}
		if wrong != nil {
			return &usageError{wrong}
		}
		switch err := c.complete(); {
		case cmd.Parent() == token && c.Tokens == "":
			return usagef("say which file: --tokens FILE or LOKTD_TOKENS")
		case cmd.Name() != "health" && cmd.Name() != "version" && cmd.Parent() != token: // these need no store
			return err
		}
		return nil
	}
	return root
}

// noCommand is for commands with subcommands: whatever else is there is none.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usagef("%q is no command: did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return usagef("%q is no command: see %s --help", args[0], cmd.CommandPath())
}

// takes is for commands with so many arguments.
func takes(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s: it takes %d arguments, and there are %q", cmd.UseLine(), n, args)
		}
		return nil
	}
}

func runServe(ctx context.Context, s Streams, c *Config, _ []string) error {
	if err := c.validate(); err != nil {
		return &usageError{err}
	}
	ends, hangup := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(ends, os.Interrupt, syscall.SIGTERM)
	signal.Notify(hangup, syscall.SIGHUP)
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		cancel(fmt.Errorf("signal %v", <-ends))
		<-ends
		os.Exit(exitError)
	}()
	ignoreFailures()
	log, flush := c.logger(s.Err)
	defer flush()
	return serve(ctx, c, log, hangup, func(url string) {
		fmt.Fprintf(s.Out, "loktd %s listening on %s\n", version.String(), url)
	})
}

func showVersion(s Streams, asJSON bool) error {
	b := version.Read()
	if !asJSON {
		fmt.Fprintf(s.Out, "loktd %s (%s, %s)\n", b.Version, b.GoVersion, b.Platform)
		return nil
	}
	line, err := lokt.Marshal(b)
	fmt.Fprintf(s.Out, "%s\n", line)
	return err
}
