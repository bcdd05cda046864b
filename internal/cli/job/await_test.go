package job

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/jobs"
)

// Promise S-94.
func TestTheEndOfAJobIsWaitedForThoughTheServerIsAwayOrAskedTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		a := cmd{&app.App{Streams: app.Streams{Err: &told}}}
		answers := []error{
			fmt.Errorf("asked: %w", &httpapi.RateLimitedError{RetryAfter: time.Second}), lokt.ErrUnavailable, nil, &httpapi.RateLimitedError{}, nil,
		}
		err := a.await(t.Context(), "j", func() (ended bool, err error) {
			err, answers = answers[0], answers[1:]
			return len(answers) == 0, err
		})
		if err != nil || len(answers) > 0 || strings.Count(told.String(), "trying again") != 2 {
			t.Errorf("%v, with %d answers left; it says %q", err, len(answers), &told)
		}
		err = a.await(t.Context(), "j", func() (bool, error) { return false, jobs.ErrJobNotFound })
		if !errors.Is(err, jobs.ErrJobNotFound) {
			t.Error(err)
		}
	})
}
