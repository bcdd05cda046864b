package daemon

import (
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Nothing that the clients ask for all the time makes a connection one for the http.Server, where each request costs more.
func TestWhatClientsAskForMostIsSimple(t *testing.T) {
	scheduler, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = scheduler.Close() }()
	d := &daemon{
		c: &Config{Listen: "127.0.0.1:0"}, crowd: newCrowd(10), log: slog.New(slog.DiscardHandler),
		api: httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New()), Jobs: scheduler}),
	}
	socket, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := d.simpleRequests(socket)
	defer func() { _ = l.Close() }()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Errorf("a connection from %v was handed over", c.RemoteAddr())
			_ = c.Close()
		}
	}()
	c, err := httpapi.New("http://"+l.Addr().String(), httpapi.ClientOptions{Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, who := t.Context(), lokt.Owner{ID: "ann@example.org", Session: "s 1/ä", Host: "h"}
	hold, err := c.Acquire(ctx, lokt.Claim{Name: "deploy-prod", LeaseID: lokt.NewLeaseID(), Owner: who, TTL: time.Minute, Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	is, err := c.Get(ctx, "deploy-prod")
	if err != nil {
		t.Fatal(err)
	}
	_, renewal := c.Renew(ctx, lokt.Renewal{Name: "deploy-prod", LeaseID: hold.LeaseID})
	_, freeze := c.Freeze(ctx, "deploy-prod", lokt.Freeze{Owner: who, Reason: "night"})
	_, thaw := c.Unfreeze(ctx, lokt.Target{Name: "deploy-prod", Owner: who})
	_, release := c.Release(ctx, lokt.Target{Name: "deploy-prod", LeaseID: hold.LeaseID, Owner: who})
	wait := c.Wait(ctx, lokt.Watch{Name: "deploy-prod", Seen: is.Lock.Revision})
	if err := errors.Join(renewal, freeze, thaw, release, wait); err != nil {
		t.Error(err)
	}
	j := c.Jobs()
	_, submit := j.Submit(ctx, []jobs.Spec{jobs.NewSpec()})
	grant, ask := j.Request(ctx, jobs.Request{WorkerID: "w"})
	if err := errors.Join(submit, ask); err != nil || grant.Denied != nil {
		t.Fatalf("error %v, denied %v", err, grant.Denied)
	}
	_, beat := j.Heartbeat(ctx, jobs.Heartbeat{LeaseID: grant.Lease.ID, WorkerID: "w"})
	_, complete := j.Complete(ctx, jobs.Completion{LeaseID: grant.Lease.ID, WorkerID: "w", Status: jobs.Completed})
	_, list := j.List(ctx, jobs.Filter{State: jobs.Completed, Type: "default"})
	_, status := j.Status(ctx)
	if err := errors.Join(beat, complete, list, status); err != nil {
		t.Error(err)
	}
}
