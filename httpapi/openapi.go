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

func (c *call) openAPI() error {
	sum := sha256.Sum256([]byte(openAPI))
	c.Header()["Content-Type"] = jsonContent
	c.Header().Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	c.writeDeadline()
	http.ServeContent(c, c.r, "", time.Time{}, strings.NewReader(openAPI))
	return nil
}
