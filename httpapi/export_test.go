package httpapi

import (
	"net/http"
	"slices"
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
