// Package httpapi is both ends of lokt's wire: [NewHandler] answers requests over a lokt.Service and a jobs.Service,
// and [Client] is a lokt.Service that asks such a handler from afar. Routes and JSON are described in docs/protocol.md;
// one table turns errors into answers and answers into the same errors again.
//
// What a lease ID proves stays secret on the wire: it is sent in a request's body or in the header Lokt-Lease, never in
// a URL, and what others see is its [PublicID].
package httpapi
