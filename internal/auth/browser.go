package auth

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Ours reports whether a request without proof of who makes it names the daemon as only the daemon is named: by a
// loopback address, by the address at which the request arrived, or by one of names. A page in a browser whose own name
// is made to resolve to 127.0.0.1 is of the same origin as the daemon, but that name gives it away.
func Ours(r *http.Request, names []string) bool {
	if r.Host == "" { // browsers always send one
		return true
	}
	host := strings.ToLower(strings.TrimSuffix((&url.URL{Host: r.Host}).Hostname(), "."))
	arrived, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	ip, err := netip.ParseAddr(host)
	if err == nil && (ip.IsLoopback() || arrived != nil && ip == arrived.AddrPort().Addr().Unmap()) {
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(host, name) })
}
