package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// tablesAgain is after how long it is said again that the tables for jobs cannot be written.
const tablesAgain = time.Minute

// tablesLog logs that the tables for jobs cannot be written, which nobody who makes a request is told before turns are too far ahead of them.
type tablesLog struct {
	log *slog.Logger

	mu     sync.Mutex
	failed bool
	told   time.Time
}

// observe is told how an operation of a database ended.
func (l *tablesLog) observe(operation string, err error, now time.Time) {
	if operation != "fold" || errors.Is(err, context.Canceled) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && l.failed:
		l.failed = false
		l.log.Info("the tables for jobs are written again")
	case err != nil && (!l.failed || now.Sub(l.told) >= tablesAgain):
		l.failed, l.told = true, now
		l.log.Error("the tables for jobs cannot be written: it is tried again, nothing is lost, but when too much is to be written requests for jobs are answered with 503; "+
			"see \"When it fails\" in operations.md", "err", err)
	}
}
