// Package version says what a program was built from.
package version

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// version, commit and date are set by the linker when a release is built.
var version, commit, date = "", "", ""

// Unknown stands for the version of a build that does not know it.
const Unknown = "dev"

// Build is what a build knows about itself.
type Build struct {
	Version   string `json:"version"` // Unknown if it is not known
	Commit    string `json:"commit,omitzero"`
	Date      string `json:"date,omitzero"`     // of the commit, RFC 3339
	Modified  bool   `json:"modified,omitzero"` // built from a tree with uncommitted changes
	GoVersion string `json:"go_version"`
	Platform  string `json:"platform"`
}

// String returns the version of this build, Unknown if it is not known.
func String() string { return Read().Version }

// Read returns what this build knows about itself: from the linker, and otherwise from the go command.
func Read() Build {
	b := Build{Version: version, Commit: commit, Date: date, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "(devel)" {
			b.Version = cmp.Or(b.Version, info.Main.Version)
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = cmp.Or(b.Commit, s.Value)
			case "vcs.time":
				b.Date = cmp.Or(b.Date, s.Value)
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	b.Version = cmp.Or(b.Version, Unknown)
	return b
}
