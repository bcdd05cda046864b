package httpapi_test

import "testing"

func TestJobIsSubmittedLeasedAndCompletedOverHTTP(t *testing.T) {
	s := newSite(t)
	id := s.submit(`{"payload":{"a": 1e2 },"tags":["x"]}`)
	l, _ := s.lease("w")
	s.state(id, "leased")
	s.ok("POST", "/leases/"+l+"/heartbeat", `{"worker_id":"w"}`)
	s.state(id, "running")
	s.ok("POST", "/leases/"+l+"/complete", `{"worker_id":"w","status":"completed","result":[1,2]}`)
	s.state(id, "completed")
	s.refused(404, "not_found", "GET", "/nope", "")
}
