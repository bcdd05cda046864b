package httpapi

import (
	"crypto/sha256"
	_ "embed" // for the description
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// openAPI describes all routes, as OpenAPI 3.1 has it. Tests hold it against what is served.
//
//go:embed openapi.json
var openAPI string

// openAPIPath is where it is served, to everybody.
const openAPIPath = "/openapi.json"

func (s *server) routeOpenAPI() {
	sum := sha256.Sum256([]byte(openAPI))
	etag := `"` + hex.EncodeToString(sum[:8]) + `"`
	s.route("GET "+openAPIPath, func(c *call) error {
		c.w.Header().Set("Content-Type", "application/json")
		c.w.Header().Set("ETag", etag)
		c.writeDeadline()
		http.ServeContent(c.w, c.r, "", time.Time{}, strings.NewReader(openAPI))
		return nil
	})
}
