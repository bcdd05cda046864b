package httpapi

import (
	"net/http"
	"slices"
)

// Patterns returns the patterns of all routes of a handler.
func Patterns(h http.Handler) []string {
	s := h.(*server)
	all := slices.Clone(s.patterns)
	if s.scheduler != nil {
		for _, methods := range s.scheduler.routes {
			for _, route := range methods {
				all = append(all, route.pattern)
			}
		}
	}
	slices.Sort(all)
	return all
}
