package app

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newHelp is help as a command: cobra's own ends well for a command that there is not.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show what a command does",
		Long:    "Show what lokt does, or one of its commands, as --help does.",
		Example: "  lokt help\n  lokt help guard",
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
	}
}

// setHelp makes help of all commands of the tree go to standard output, as JSON if that was asked for.
func (a *App) setHelp(root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		about := strings.TrimSpace(cmd.Long)
		if about == "" {
			about = strings.TrimSpace(cmd.Short)
		}
		if !a.JSON {
			fmt.Fprintf(a.Out, "%s\n\n%s", about, cmd.UsageString())
			return
		}
		_ = a.Print(struct { // as for text, there is nobody to tell
			Command string `json:"command"`
			Short   string `json:"short"`
			About   string `json:"about"`
			Example string `json:"example,omitzero"`
			Usage   string `json:"usage"`
		}{cmd.CommandPath(), cmd.Short, about, cmd.Example, cmd.UsageString()})
	})
}
