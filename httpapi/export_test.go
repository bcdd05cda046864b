package httpapi

import (
	"net/http"
	"slices"
	"time"
)

// Patterns returns the patterns of all routes of a handler.
func Patterns(h http.Handler) []string {
	var all []string
	for _, r := range h.(*server).routes() {
		all = append(all, r.pattern)
	}
	slices.Sort(all)
	return all
}

// NewPace returns when leases that live so long are to be renewed, by a server that wants so many requests in a second.
func NewPace(perSecond int) func(life time.Duration) time.Duration { return newPace(perSecond).next }
