package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/store/memstore"
)

// fromAfar returns a client of a server of the jobs, over connections in memory.
func fromAfar(t *testing.T, s jobs.Service) *httpapi.JobsClient {
	t.Helper()
	w := newPipeListener()
	server := &http.Server{Handler: httpapi.NewHandler(httpapi.Config{Jobs: s})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(w)
	}()
	transport := &http.Transport{DialContext: w.dial, MaxIdleConnsPerHost: 100}
	c, err := httpapi.NewJobs("http://memory", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		<-served
	})
	return c
}

// Promise S-84.
func TestJobsClientKeepsEveryPromiseOfTheService(t *testing.T) {
	jobstest.TestService(t, func(t *testing.T, c jobs.Config) jobs.Service {
		m, err := jobs.Open(t.Context(), memstore.NewJobs(), jobs.Options{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return fromAfar(t, m)
	})
}
