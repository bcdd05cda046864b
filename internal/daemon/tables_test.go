package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Promise S-153.
func TestItIsLoggedOnceAMinuteThatTheTablesForJobsCannotBeWritten(t *testing.T) {
	var out strings.Builder
	l := &tablesLog{log: slog.New(slog.NewTextHandler(&out, nil))}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	reason := errors.New("no room")
	for s := range 130 {
		l.observe("fold", reason, start.Add(time.Duration(s)*time.Second))
		l.observe("commit", reason, start)
		l.observe("fold", context.Canceled, start)
	}
	for range 2 {
		l.observe("fold", nil, start)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], "level=ERROR") || !strings.Contains(lines[0], "no room") || !strings.Contains(lines[0], "503") ||
		!strings.Contains(lines[3], "again") {
		t.Errorf("logged was\n%s", out.String())
	}
}
