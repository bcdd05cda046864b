package app

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newCompletion(a *App) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Write a script that completes command lines in a shell",
		Long: "Write a script that makes the shell complete commands, flags and the names of locks. Load it in the shell's start-up\n" +
			"file, or put it where the shell looks for such scripts. For bash, the package bash-completion must be there too.",
		Example: "  source <(lokt completion bash)\n" +
			"  lokt completion zsh > \"${fpath[1]}/_lokt\"\n" +
			"  lokt completion fish > ~/.config/fish/completions/lokt.fish",
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(shells, args[0]) {
				return Usagef("name one shell: %s", strings.Join(shells, ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runCompletion(cmd.Root(), args[0]) },
	}
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
