package httpapi

import (
	"context"
	_ "embed" // for the description
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/lokt-dev/lokt"
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
}

func (c *call) about(*none) (About, error) {
	s := c.s
	about := About{
		Version: s.About.Version, Store: s.About.Store, Now: time.Now().UTC(),
		Locks: s.Locks != nil, Events: s.Events != nil, Jobs: s.Jobs != nil,
		Caller: c.who(), Anonymous: c.who() == "",
	}
	for _, scope := range Scopes() {
		if c.may(scope, "") == nil {
			about.Scopes = append(about.Scopes, scope)
		}
	}
	return about, nil
}

// About asks the server what it is, and who it takes the caller for.
func (c *Client) About(ctx context.Context) (About, error) {
	return routeAbout.ask(ctx, c, nil)
}

// Ready returns what the server says if its store does not answer, or takes no changes, and otherwise nil: also if it
// does not tell.
func (c *Client) Ready(ctx context.Context) error {
	err := c.do(ctx, &exchange{method: http.MethodGet, path: "/readyz"}, func(io.Reader) error { return nil })
	if Answered(err) && errors.Is(err, lokt.ErrUnavailable) {
		return err
	}
	return nil
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
