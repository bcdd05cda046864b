package app

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/lockfile"
)

// version is set by the linker when a release is built.
var version = ""

// UnknownVersion stands for the version of a build that does not know it.
const UnknownVersion = "dev"

// versionInfo is what a build knows about itself.
type versionInfo struct {
	Version         string `json:"version"` // "dev" if it is not known
	Commit          string `json:"commit,omitzero"`
	Modified        bool   `json:"modified,omitzero"` // built from a tree with uncommitted changes
	GoVersion       string `json:"go_version"`
	Platform        string `json:"platform"`
	ProtocolVersion int    `json:"protocol_version"` // of the lock files
}

// Version returns the version of this build, "dev" if it is not known.
func Version() string { return buildVersion().Version }

func buildVersion() versionInfo {
	v := versionInfo{
		Version: version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, ProtocolVersion: lockfile.Version,
	}
	if b, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" && b.Main.Version != "(devel)" {
			v.Version = b.Main.Version
		}
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	if v.Version == "" {
		v.Version = UnknownVersion
	}
	return v
}

func newVersion(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of lokt and of the lock files that it writes",
		Long: "Show the version of lokt, what it was built from, and the version of the lock files that it writes: programs\n" +
			"with the same protocol version can share a directory.",
		Example: "  lokt version\n  lokt version --json",
		Args:    NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runVersion() },
	}
}

func (a *App) runVersion() error {
	v := buildVersion()
	if a.JSON {
		return a.Print(v)
	}
	a.Say("lokt %s (%s, %s, protocol version %d)", v.Version, v.GoVersion, v.Platform, v.ProtocolVersion)
	if v.Commit != "" {
		a.Say("commit %s%s", v.Commit, map[bool]string{true: " and changes"}[v.Modified])
	}
	return nil
}
