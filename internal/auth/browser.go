package auth

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Ours reports whether a request without proof of who makes it names the daemon as only the daemon is named: by a
// loopback address, by the address at which the request arrived, or by one of names. A page in a browser whose own name
// is made to resolve to 127.0.0.1 is of the same origin as the daemon, but that name gives it away.
func Ours(r *http.Request, names []string) bool {
	if r.Host == "" { // browsers always send one
		return true
	}
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
	for _, name := range names {
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
