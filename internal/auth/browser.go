package auth

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Browsers keeps web pages of others from using the daemon through a browser that can reach it.
//
// A page may send requests anywhere, with the certificates that the browser has, but it cannot hide from where it comes:
// browsers add an Origin, or Sec-Fetch-Site, and a request that names another site than the daemon is refused. With a name that
// is made to resolve to 127.0.0.1 a page can make itself the same site; so names, if they are checked, must be ours.
type Browsers struct {
	// Names, if not nil, are the names and addresses under which the daemon may be addressed, beside those of loopback and
	// the address at which the request arrived. It is nil where callers prove who they are.
	Names []string
}

// Refuse returns why the request is refused, or "" if it is not.
func (b Browsers) Refuse(r *http.Request) string {
	if b.Names != nil && r.Host != "" && !b.ours(r) { // browsers always send one
		return "the daemon is not known under this name; see --hosts"
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return "pages of other sites may not use the daemon"
	}
	for _, origin := range r.Header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return "pages of other sites may not use the daemon"
		}
	}
	return ""
}

// ours reports whether the Host header is one that only this daemon has.
func (b Browsers) ours(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if ip, err := netip.ParseAddr(host); err == nil && (ip.IsLoopback() || ip == arrived(r)) {
		return true
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	for _, name := range b.Names {
		if strings.EqualFold(host, name) {
			return true
		}
	}
	return false
}

// arrived returns the address of ours at which the request arrived.
func arrived(r *http.Request) netip.Addr {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
