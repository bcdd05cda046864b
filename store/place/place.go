// Package place finds out what the promises of docs/semantics.md depend on besides lokt: the file system, the clocks, the
// kernel, and how a database is set. It looks and changes nothing.
package place

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Status says how a condition was found.
type Status string

// Values of Status.
const (
	OK      Status = "ok"
	Unknown Status = "unknown" // it cannot be seen from here
	Warn    Status = "warn"
	Fail    Status = "fail"
)

// Condition is one thing that promises depend on, as it was found.
type Condition struct {
	Name     string   `json:"name"`
	Status   Status   `json:"status"`
	Message  string   `json:"message"`            // what was found
	Follows  string   `json:"follows,omitzero"`   // what happens where the promises do not hold
	Fix      string   `json:"fix,omitzero"`       // what to do
	Promises []string `json:"promises,omitempty"` // their numbers
}

// Teller is implemented by stores that can say what promises about them depend on.
type Teller interface {
	// Conditions asks anew each time. What cannot be found out before ctx ends is Unknown.
	Conditions(ctx context.Context) []Condition
}

// Ask makes a Teller of a function.
type Ask func(ctx context.Context) []Condition

// Conditions implements Teller.
func (a Ask) Conditions(ctx context.Context) []Condition { return a(ctx) }

// dependent returns the promises that depend on each condition. All others hold everywhere.
func dependent() map[string]string {
	return map[string]string{
		"filesystem":    "S-1 S-2 S-3 S-4 S-8 S-51",
		"kernel-locks":  "S-2 S-3 S-33 S-35",
		"disk":          "S-52",
		"boot-clock":    "S-28 S-29",
		"clock-rate":    "S-12 S-18 S-27 S-86 S-92 S-105 S-112",
		"wall-clock":    "S-5 S-115",
		"processes":     "S-26 S-33 S-36 S-193 S-196",
		"commands":      "S-18 S-92 S-105 S-108",
		"pressure":      "S-203",
		"store":         "S-4 S-61 S-62 S-63 S-93 S-96 S-107 S-141",
		"database-file": "S-61 S-64 S-66 S-135",
		"database-disk": "S-61 S-63 S-96 S-135 S-159 S-180",
		"commit":        "S-61 S-63 S-96",
		"standbys":      "S-4 S-61 S-63 S-96",
		"members":       "S-110 S-114",
		"alarms":        "S-110 S-114",
	}
}

// Tally says which promises hold under the conditions that were found. Each is counted once.
type Tally struct {
	Everywhere int      `json:"everywhere"` // that depend on nothing
	Elsewhere  int      `json:"elsewhere"`  // that depend on what was not looked at: other stores
	Here       []string `json:"here"`       // that hold here,
	Unknown    []string `json:"unknown"`    // of which that cannot be seen,
	Broken     []string `json:"broken"`     // and that do not
}

// Count tallies so many promises.
func Count(all int, found []Condition) (t Tally) {
	depend, worst := map[string]bool{}, map[string]Status{}
	for _, promises := range dependent() {
		for _, p := range strings.Fields(promises) {
			depend[p] = true
		}
	}
	for _, c := range found {
		for _, p := range c.Promises {
			if was := worst[p]; c.Status == Warn || c.Status == Fail || was == "" || was == OK {
				worst[p] = c.Status
			}
		}
	}
	number := func(p string) int { n, _ := strconv.Atoi(strings.TrimPrefix(p, "S-")); return n }
	for _, p := range slices.SortedFunc(maps.Keys(worst), func(a, b string) int { return number(a) - number(b) }) {
		list := map[Status]*[]string{OK: &t.Here, Unknown: &t.Unknown, Warn: &t.Broken, Fail: &t.Broken}[worst[p]]
		*list = append(*list, p)
	}
	t.Everywhere, t.Elsewhere = all-len(depend), len(depend)-len(worst)
	return t
}

// Found is a condition with the promises that depend on it.
func Found(name string, status Status, message, follows, fix string) Condition {
	return Condition{name, status, message, follows, fix, strings.Fields(dependent()[name])}
}

// holds is a condition under which its promises hold.
func holds(name, message string) Condition { return Found(name, OK, message, "", "") }
