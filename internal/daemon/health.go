package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/auth"
	"github.com/lokt-dev/lokt/store/place"
	"github.com/lokt-dev/lokt/store/sqlstore"
	"github.com/lokt-dev/lokt/telemetry"
)

// probeName is a lock that readiness looks at and nobody ever holds.
const probeName = "loktd.readyz"

// Bounds on how often, and for how long, the store is asked whether it answers.
const (
	probeTimeout = 2 * time.Second
	probeLife    = 500 * time.Millisecond
)

// alive asks the store and the scheduler for something small.
func (d *daemon) alive(ctx context.Context) error {
	_, err := d.locks.Get(ctx, probeName)
	for _, ping := range d.stores.pings {
		err = errors.Join(err, ping(ctx))
	}
	if err == nil && d.jobs != nil {
		_, err = d.jobs.Status(ctx)
	}
	return err
}

// ready returns why requests cannot be served, or nil.
func (d *daemon) ready(ctx context.Context) error {
	if d.stopping.Load() {
		return errors.New("stopping")
	}
	d.probing.Lock()
	defer d.probing.Unlock()
	if time.Since(d.probed) < probeLife {
		return d.trouble
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	before := d.trouble
	d.trouble, d.probed = d.alive(ctx), time.Now()
	switch {
	case d.trouble != nil && before == nil:
		d.log.Error("not ready", "err", d.trouble)
	case d.trouble == nil && before != nil:
		d.log.Info("ready again")
	}
	return d.trouble
}

// conditions are those of the daemon itself.
func (d *daemon) conditions(ctx context.Context) []place.Condition {
	return append(place.Host(), place.Ready(d.ready(ctx) == nil))
}

// health answers whether the process lives (/healthz), and whether it can serve (/readyz).
func (d *daemon) health(w http.ResponseWriter, r *http.Request) {
	if !onlyLooks(w, r) {
		return
	}
	status, err := "ok", error(nil)
	if r.URL.Path == "/readyz" {
		status, err = "ready", d.ready(r.Context())
	}
	why := "the store does not answer: the daemon's log says why"
	switch {
	case err == nil:
		writeJSON(w, http.StatusOK, "application/json", map[string]string{"status": status})
		return
	case d.stopping.Load():
		why = err.Error()
	case errors.Is(err, sqlstore.ErrFull):
		why = sqlstore.ErrFull.Error()
	}
	problem(w, http.StatusServiceUnavailable, "unavailable", why)
}

// onlyLooks reports whether the request only looks; if not, it has been answered.
func onlyLooks(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	problem(w, http.StatusMethodNotAllowed, "method_not_allowed", "")
	return false
}

// problem answers with an error in the form of the locks API.
func problem(w http.ResponseWriter, status int, code, detail string) {
	body := map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code}
	if detail != "" {
		body["detail"] = detail
	}
	writeJSON(w, status, "application/problem+json", body)
}

func writeJSON(w http.ResponseWriter, status int, mediaType string, body any) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // if it cannot be written nobody is there to read it
}

// allowed reports whether the caller has the scope, for all locks; if not, the request has been answered.
func (d *daemon) allowed(w http.ResponseWriter, r *http.Request, scope auth.Scope) bool {
	if !d.c.authenticates() {
		return true
	}
	caller, err := d.gate.Enter(r)
	switch {
	case errors.Is(err, httpapi.ErrRateLimited):
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusTooManyRequests, "rate_limited", err.Error())
	case err != nil:
		w.Header().Set("WWW-Authenticate", "Bearer")
		problem(w, http.StatusUnauthorized, "unauthenticated", err.Error())
	case !caller.May(scope, telemetry.Overflow): // which no prefix lets through
		problem(w, http.StatusForbidden, "forbidden", "the scope "+string(scope)+", without a prefix, is missing")
	default:
		return true
	}
	return false
}

// metrics answers with the metrics, to those who may read.
func (d *daemon) metrics(w http.ResponseWriter, r *http.Request) {
	if onlyLooks(w, r) && d.allowed(w, r, httpapi.ScopeRead) {
		d.meter.ServeHTTP(w, r)
	}
}
