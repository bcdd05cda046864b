package httpapi

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/jobs"
)

// JobDocument returns the JSON of a job as the scheduler's answers have it.
func JobDocument(v *jobs.View) (jsontext.Value, error) {
	return form.Marshal((*viewWire)(shown(new(*v), true)))
}

// PageDocument returns the JSON of a list of jobs as the scheduler's answers have it.
func PageDocument(p *jobs.Page) (jsontext.Value, error) { return form.Marshal(toPage(p, true)) }

// StatsDocument returns the JSON of statistics of so many days as the scheduler's answers have it, with what is going
// on now as their member "status".
func StatsDocument(s *jobs.Stats, days int, now *jobs.Snapshot) (jsontext.Value, error) {
	return form.Marshal(struct {
		statsWire
		Status *jobs.Snapshot `json:"status"`
	}{*toStats(s, days), now})
}
