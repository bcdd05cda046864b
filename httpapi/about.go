package httpapi

import (
	"context"
	_ "embed" // for the description
	"net/http"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/place"
)

// About is what a server says of itself to a caller.
type About struct {
	Version   string    `json:"version,omitzero"`
	Store     string    `json:"store,omitzero"` // the kind of store that keeps the locks
	Now       time.Time `json:"now"`            // by the server's clock
	Locks     bool      `json:"locks"`          // it serves locks,
	Events    bool      `json:"events"`         // their events,
	Jobs      bool      `json:"jobs"`           // and jobs
	Caller    string    `json:"caller,omitzero"`
	Anonymous bool      `json:"anonymous"` // everybody may do everything, without saying who they are
	Scopes    []Scope   `json:"scopes"`    // what the caller may do, if only to some locks or jobs

	Conditions []place.Condition `json:"conditions,omitempty"` // what promises depend on at the server, if that was asked for
}

type aboutWire struct {
	Conditions bool `json:"conditions"`
}

func (c *call) about(q *aboutWire) (About, error) {
	s := c.s
	about := About{
		Version: s.About.Version, Store: s.About.Store, Now: time.Now().UTC(),
		Locks: s.Locks != nil, Events: s.Events != nil, Jobs: s.Jobs != nil, Caller: c.who(), Anonymous: c.who() == "",
	}
	for _, scope := range Scopes() {
		if c.may(scope, "") == nil {
			about.Scopes = append(about.Scopes, scope)
		}
	}
	for _, t := range s.Conditions {
		if q.Conditions && c.may(ScopeRead, "") == nil {
			about.Conditions = append(about.Conditions, t.Conditions(c.r.Context())...)
		}
	}
	return about, nil
}

// About asks the server what it is, and who it takes the caller for.
func (c *Client) About(ctx context.Context) (About, error) { return routeAbout.ask(ctx, c, nil) }

// Conditions asks the server what promises depend on where it runs.
func (c *Client) Conditions(ctx context.Context) ([]place.Condition, error) {
	about, err := routeAbout.ask(ctx, c, &aboutWire{true})
	return about.Conditions, err
}

// Know tells the client of a lease that its user holds though another client acquired it: what answers say of it is
// found under its own ID from then on, as the leases acquired here are.
func (c *Client) Know(leaseID string) {
	if checkLeaseID(leaseID) == nil {
		c.know(leaseID)
	}
}

// Shown returns the public ID of a lease ID. A public one stays as it is.
func Shown(leaseID string) string {
	if isPublicID(leaseID) {
		return leaseID
	}
	return lokt.PublicID(leaseID)
}

// openAPI describes all routes, as OpenAPI 3.1 has it. Tests hold it against what is served.
//
//go:embed openapi.json
var openAPI []byte

// openAPIPath is where it is served, to everybody.
const openAPIPath = "/openapi.json"

func (c *call) openAPI(*none) (none, error) { return none{}, c.send(http.StatusOK, openAPI) }
