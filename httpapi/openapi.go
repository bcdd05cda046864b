package httpapi

import (
	_ "embed" // for the description
	"net/http"
)

// openAPI describes all routes, as OpenAPI 3.1 has it. Tests hold it against what is served.
//
//go:embed openapi.json
var openAPI []byte

// openAPIPath is where it is served, to everybody.
const openAPIPath = "/openapi.json"

func (c *call) openAPI() error { return c.send(http.StatusOK, openAPI) }
