package cli

import (
	"context"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Options say what a program that runs the command line can do beyond the files of its host. The zero Options are those of
// a program that links no network: what needs a server it leaves to the program lokt-remote, which it replaces itself by.
type Options struct {
	// Dial, if set, makes a client of a server. It need not reach the server: that shows when it is asked for something.
	Dial func(ctx context.Context, s Server) (Remote, error)

	// Explain says of an error of Dial or of a Remote what it is, as a stable code, and what can be done about it. Both are
	// empty for an error that it does not know.
	Explain func(err error) (code, advice string)

	// Caller is the version of the program that left the command line to this one; empty if none did.
	Caller string
}

// Server says how to reach a server: what the flag --server and the environment say of it.
type Server struct {
	URLs     []string // at least one; the first that answers is used
	Token    string   // proves who asks; empty without one. It is not shown to anybody
	CAFile   string   // certificates to trust, in PEM, instead of the system's
	CertFile string   // certificate that proves who asks, in PEM
	KeyFile  string   // its key
	Agent    string   // name and version of the program, for the server's log
}

// Remote is a server seen from afar. Its services are usable until Close; errors wrap lokt.ErrUnavailable if the server
// cannot be reached.
type Remote interface {
	Locks() lokt.Service
	Events() lokt.EventLog
	Jobs() jobs.Service

	// Know tells of leases that the caller holds, though another process acquired them: they are shown under their own
	// IDs from then on, as the leases acquired here are.
	Know(leaseIDs ...string)

	// Shown returns what others see instead of a lease ID, which is a secret of whoever acquired it. What is shown already
	// stays as it is.
	Shown(leaseID string) string

	// Ask asks the server what it is, and looks at the connection.
	Ask(ctx context.Context) (ServerInfo, error)

	Close() error
}

// ServerInfo is what a server says of itself, and what its answer shows of the connection. What is not known is zero.
type ServerInfo struct {
	URL       string // of the server that answered
	Version   string
	Store     string // the kind of store that it keeps its locks in
	Caller    string // who the server takes the caller for
	Anonymous bool   // it asks nobody who they are
	Scopes    []string
	Locks     bool // it serves locks,
	Events    bool // their events,
	Jobs      bool // and jobs
	TLS       string
	Trouble   error // what it says of its store, if that is not ready
	RoundTrip time.Duration
	Ahead     time.Duration // how far the server's clock is ahead of this host's, give or take half the round trip
}
