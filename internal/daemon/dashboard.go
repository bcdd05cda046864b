package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/lokt-dev/lokt/dashboard"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/version"
)

// pages returns the dashboard over the daemon's services.
func (d *daemon) pages() *dashboard.Dashboard {
	kind, _, _ := strings.Cut(d.c.Store, ":") // the rest may be a secret
	c := dashboard.Config{
		Locks: d.locks, Events: d.stores.events, URL: d.url, About: "loktd " + version.String() + " on " + kind, TLS: d.tls != nil,
		Streams: d.c.MaxStreams, StreamsEach: d.c.MaxStreamsEach, Log: d.log, Stop: d.waits,
	}
	if d.jobs != nil {
		c.Jobs = d.jobs
	}
	if d.c.authenticates() {
		c.Enter = func(r *http.Request) (dashboard.Caller, error) {
			caller, err := d.gate.Enter(r)
			if errors.Is(err, httpapi.ErrRateLimited) {
				return nil, fmt.Errorf("%w: %w", dashboard.ErrTooOften, err)
			}
			if err != nil {
				return nil, fmt.Errorf("%w: %w", dashboard.ErrUnauthenticated, err)
			}
			return person{caller}, nil
		}
	}
	return dashboard.New(c)
}

// person is a caller of the API before a browser.
type person struct{ httpapi.Caller }

// May implements dashboard.Caller.
func (p person) May(s dashboard.Scope, name string) bool { return p.Caller.May(httpapi.Scope(s), name) }
