package httpapi

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// An endpoint is a route that is asked with a Q and answers with an A: the handler serves it, and clients ask it. The
// members of a Q are in the body, if the route reads one, and otherwise parameters of the URL.
type endpoint[Q, A any] struct {
	pattern string // of http.ServeMux
	scope   Scope  // that the caller must have, for the lock in the path if there is one; empty if none
	rules   rules
	needed  []string // members of the scheduler's bodies that must be there

	// serve returns the answer. A function that writes it itself returns an empty one.
	serve func(c *call, q *Q) (A, error)
}

// rules say what is special about a route.
type rules int

const (
	body     rules = 1 << iota // it reads a body
	optional                   // which may be missing
	keeps                      // it keeps a lease, or ends it: it is answered however often its caller asks
	denies                     // who asks too often is denied, with 200, and not answered with an error
)

// none is what is asked where the path says it all, or what is answered where the route writes the answer itself.
type none struct{}

// The routes of locks. Who holds something must not lose it because others, or he himself, asked for too much under
// the same name, so what keeps a lease or ends it is answered all the same.
var (
	routeOpenAPI    = endpoint[none, none]{"GET " + openAPIPath, "", 0, nil, (*call).openAPI}
	routeAbout      = endpoint[aboutWire, About]{"GET /v1/about", "", 0, nil, (*call).about}
	routeAudit      = endpoint[eventsWire, lokt.EventPage]{"GET /v1/audit", ScopeRead, 0, nil, (*call).audit}
	routeEvents     = endpoint[eventsWire, none]{"GET /v1/events", ScopeRead, 0, nil, (*call).stream}
	routeLocks      = endpoint[listWire, locksWire]{"GET /v1/locks", ScopeRead, 0, nil, (*call).listLocks}
	routeLock       = endpoint[seenWire, lockWire]{"GET /v1/locks/{name}", ScopeRead, 0, nil, (*call).getLock}
	routeAcquire    = endpoint[claimWire, grantWire]{"POST /v1/locks/{name}/leases", ScopeLock, body, nil, (*call).acquire}
	routeRenew      = endpoint[batchOfLeases, renewedWire]{"POST /v1/leases/heartbeat", ScopeLock, body | keeps, nil, (*call).renewAll}
	routeRelease    = endpoint[leaseWire, releasedWire]{"DELETE /v1/locks/{name}/leases/{id}", ScopeLock, keeps, nil, (*call).releaseOne}
	routeReleaseAll = endpoint[targetWire, releasedWire]{"DELETE /v1/locks/{name}/leases", ScopeLock, 0, nil, (*call).releaseAll}
	routePrune      = endpoint[none, prunedWire]{"POST /v1/locks/{name}/prune", ScopeLock, 0, nil, (*call).prune}
	routeTell       = endpoint[lokt.Message, grantWire]{"POST /v1/locks/{name}/messages", ScopeLock, body, nil, (*call).tell}
	routeFreeze     = endpoint[lokt.Freeze, freezeWire]{"PUT /v1/locks/{name}/freeze", ScopeLock, body, nil, (*call).freeze}
	routeUnfreeze   = endpoint[targetWire, freezeWire]{"DELETE /v1/locks/{name}/freeze", ScopeLock, 0, nil, (*call).unfreeze}
)

// jobsPrefix is where the scheduler's routes are.
const (
	jobsPrefix = "/api/system/scheduler"
	getJobs    = "GET " + jobsPrefix
	postJobs   = "POST " + jobsPrefix
	leaseRoute = postJobs + "/leases/{lease_id}"
)

// The routes of the scheduler.
var (
	routeSubmit       = endpoint[submitWire, submittedWire]{postJobs + "/jobs", ScopeSubmit, body, nil, (*call).submit}
	routeJobs         = endpoint[filterWire, pageWire]{getJobs + "/jobs", ScopeRead, 0, nil, (*call).listJobs}
	routeJob          = endpoint[none, viewWire]{getJobs + "/jobs/{job_id}", ScopeRead, 0, nil, (*call).getJob}
	routeOutput       = endpoint[fromWire, jobs.Output]{getJobs + "/jobs/{job_id}/output", ScopeRead, 0, nil, (*call).output}
	routeCancel       = endpoint[reasonWire, okWire]{postJobs + "/jobs/{job_id}/cancel", ScopeSubmit, body | optional, nil, (*call).cancelJob}
	routeRequest      = endpoint[jobs.Request, leaseAnswerWire]{postJobs + "/leases/request", ScopeWork, body | denies, []string{"worker_id"}, (*call).request}
	routeHeartbeatAll = endpoint[batchWire, batchAnswerWire]{postJobs + "/leases/heartbeat", ScopeWork, body | keeps, []string{"worker_id", "lease_ids"}, (*call).heartbeatAll}
	routeHeartbeat    = endpoint[jobs.Heartbeat, newsWire]{leaseRoute + "/heartbeat", ScopeWork, body | keeps, []string{"worker_id"}, (*call).heartbeat}
	routeComplete     = endpoint[jobs.Completion, okWire]{leaseRoute + "/complete", ScopeWork, body | keeps, []string{"worker_id", "status"}, (*call).complete}
	routeReport       = endpoint[jobs.Progress, okWire]{leaseRoute + "/report", ScopeWork, body, []string{"worker_id"}, (*call).report}
	routeRevoke       = endpoint[reasonWire, okWire]{leaseRoute + "/revoke", ScopeAdmin, body | optional, nil, (*call).revoke}
	routeStatus       = endpoint[none, jobs.Snapshot]{getJobs + "/status", ScopeRead, 0, nil, (*call).getStatus}
	routeWorkers      = endpoint[none, workersWire]{getJobs + "/workers", ScopeRead, 0, nil, (*call).workers}
	routeStats        = endpoint[daysWire, statsWire]{getJobs + "/history/stats", ScopeRead, 0, nil, (*call).stats}
	routeCount        = endpoint[endedWire, countWire]{getJobs + "/history/count", ScopeRead, 0, nil, (*call).countEnded}
	routeDecisions    = endpoint[daysWire, jobs.Decisions]{getJobs + "/history/decisions", ScopeRead, 0, nil, (*call).decisions}
	routeCleanup      = endpoint[daysWire, okWire]{postJobs + "/history/cleanup", ScopeAdmin, 0, nil, (*call).cleanup}
	routeFreezeType   = endpoint[typeWire, okWire]{postJobs + "/freeze", ScopeAdmin, body | optional, nil, (*call).freezeType}
	routeUnfreezeType = endpoint[typeWire, okWire]{postJobs + "/unfreeze", ScopeAdmin, body | optional, nil, (*call).unfreezeType}
)

// route is an endpoint as the handler has it.
type route struct {
	pattern string
	scope   Scope
	rules   rules

	// serve answers. An error that it returns before it has written anything is answered by fail; after that, it breaks
	// the connection, so that the client sees that the answer is not complete.
	serve func(c *call) error
}

// on returns the endpoint's route.
func (e endpoint[Q, A]) on() route {
	return route{e.pattern, e.scope, e.rules, func(c *call) error {
		q := new(Q)
		if err := c.decode(q, e.needed); err != nil {
			return err
		}
		if id := c.r.PathValue("job_id"); id != "" && !jobs.PossibleID(id) {
			return jobs.ErrJobNotFound
		}
		answer, err := e.serve(c, q)
		if err != nil || c.status != 0 {
			return err
		}
		return c.answer(http.StatusOK, &answer)
	}}
}

// routes returns what there is to serve.
func (s *server) routes() []route {
	all := []route{
		routeOpenAPI.on(), routeAbout.on(), routeAudit.on(), routeEvents.on(), routeLocks.on(), routeLock.on(), routeAcquire.on(),
		routeRenew.on(), routeRelease.on(), routeReleaseAll.on(), routePrune.on(), routeTell.on(), routeFreeze.on(), routeUnfreeze.on(),
	}
	if s.Jobs == nil {
		return all
	}
	return append(all,
		routeSubmit.on(), routeJobs.on(), routeJob.on(), routeOutput.on(), routeCancel.on(), routeRequest.on(),
		routeHeartbeatAll.on(), routeHeartbeat.on(), routeComplete.on(), routeReport.on(), routeRevoke.on(), routeStatus.on(), routeWorkers.on(),
		routeStats.on(), routeCount.on(), routeDecisions.on(), routeCleanup.on(), routeFreezeType.on(), routeUnfreezeType.on())
}

// to returns a request to the endpoint. What stands in its path is given in order: nothing stands for an ID that
// nothing has.
func (e endpoint[Q, A]) to(q *Q, path ...string) *exchange {
	x := &exchange{}
	x.method, x.path, _ = strings.Cut(e.pattern, " ")
	x.jobs = strings.HasPrefix(x.path, jobsPrefix)
	for _, value := range path {
		before, rest, _ := strings.Cut(x.path, "{")
		name, after, _ := strings.Cut(rest, "}")
		switch {
		case name == "name":
			x.invalid = lokt.ValidateName(value)
		case value == "":
			value = "-"
		}
		x.path = before + url.PathEscape(value) + after
	}
	switch {
	case q == nil:
	case e.rules&body != 0:
		if text, err := x.encode(q); err != nil {
			x.invalid = invalid("%v", err)
		} else {
			x.body = text
		}
	default:
		x.query = parameters(q)
	}
	return x
}
