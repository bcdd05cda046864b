package app

import (
	"bytes"
	"cmp"
	_ "embed" // for help.md
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/version"
	"github.com/lokt-dev/lokt/lockfile"
)

func newVersion(a *App) *cobra.Command {
	return Plain("version", func(*cobra.Command) error { return a.runVersion() })
}

func (a *App) runVersion() error {
	b := version.Read()
	if a.JSON {
		return a.Print(struct {
			version.Build
			ProtocolVersion int `json:"protocol_version"` // of the lock files
		}{b, lockfile.Version})
	}
	a.Say("lokt %s (%s, %s, protocol version %d)", b.Version, b.GoVersion, b.Platform, lockfile.Version)
	if b.Commit != "" {
		a.Say("commit %s%s", b.Commit, map[bool]string{true: " and changes"}[b.Modified])
	}
	return nil
}

func newCompletion(a *App) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return Describe("completion", &cobra.Command{
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(shells, args[0]) {
				return Usagef("name one shell: %s", strings.Join(shells, ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runCompletion(cmd.Root(), args[0]) },
	})
}

func (a *App) runCompletion(root *cobra.Command, shell string) error {
	var script bytes.Buffer
	err := map[string]func() error{
		"bash":       func() error { return root.GenBashCompletionV2(&script, true) },
		"zsh":        func() error { return root.GenZshCompletion(&script) },
		"fish":       func() error { return root.GenFishCompletion(&script, true) },
		"powershell": func() error { return root.GenPowerShellCompletionWithDesc(&script) },
	}[shell]()
	switch {
	case err != nil:
		return fmt.Errorf("completion script for %s: %w", shell, err)
	case a.JSON:
		return a.Print(map[string]string{"shell": shell, "script": script.String()})
	}
	return a.Write(script.String())
}

// newHelp is help as a command: cobra's own ends well for a command that there is not.
func newHelp() *cobra.Command {
	return Describe("help", &cobra.Command{
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, c := range cmd.Root().Commands() {
				if len(args) == 0 && c.IsAvailableCommand() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, _ := cmd.Root().Find(args) // whose error does not say what was meant
			if len(rest) > 0 {
				return unknown(about, rest[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	})
}

//go:embed help.md
var helpText string

// Describe puts into a command what help.md says of it.
func Describe(command string, cmd *cobra.Command) *cobra.Command {
	_, text, _ := strings.Cut(helpText, "== "+command+": ")
	text, _, _ = strings.Cut(text, "\n== ")
	cmd.Use, text, _ = strings.Cut(text, "\n")
	cmd.Short, text, _ = strings.Cut(text, "\n")
	about, example, _ := strings.Cut(text, "\nExamples:\n")
	cmd.Long, cmd.Example = strings.TrimSpace(about), strings.TrimRight(example, "\n")
	return cmd
}

// setHelp makes help of all commands of the tree go to standard output, as JSON if that was asked for.
func (a *App) setHelp(root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		about := cmp.Or(cmd.Long, cmd.Short)
		usage := cmd.UsageString() // as wide as it comes: a template of cobra that wraps would link much that nothing else needs
		usage = strings.Replace(usage, strings.TrimSpace(cmd.LocalFlags().FlagUsages()), strings.TrimSpace(cmd.LocalFlags().FlagUsagesWrapped(80)), 1)
		usage = strings.Replace(usage, strings.TrimSpace(cmd.InheritedFlags().FlagUsages()), strings.TrimSpace(cmd.InheritedFlags().FlagUsagesWrapped(80)), 1)
		if !a.JSON {
			a.unsaid = a.Write(about + "\n\n" + usage)
			return
		}
		a.unsaid = a.Print(struct {
			Command string `json:"command"`
			Short   string `json:"short"`
			About   string `json:"about"`
			Example string `json:"example,omitzero"`
			Usage   string `json:"usage"`
		}{cmd.CommandPath(), cmd.Short, about, cmd.Example, usage})
	})
}
