package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// looking are the commands that only look.
func looking(name string) [][]string {
	return [][]string{
		{"status"}, {"status", "--json"}, {"status", name}, {"status", name, "--json"}, {"exists", name}, {"why", name},
		{"why", name, "--json"}, {"audit"}, {"audit", "--json", "--name", name}, {"doctor"}, {"doctor", "--json"}, {"prime"},
		{"version"}, {"help"}, {"completion", "bash"}, {"__complete", "unlock", ""},
	}
}

func TestLookingCreatesNothing(t *testing.T) {
	p := newPlace(t)
	work := filepath.Join(p.dir, "work")
	check(t, os.Mkdir(work, 0o755))
	for _, elsewhere := range []*place{p, p.with("LOKT_ROOT="), p.with("LOKT_ROOT=relative/path")} {
		for _, args := range looking("x") {
			cmd := elsewhere.lokt(args...)
			cmd.Dir = work
			if r := elsewhere.finish(cmd); r.code != 0 && r.code != 3 {
				t.Errorf("%v: %v", args, r)
			}
		}
		for _, args := range [][]string{{"unlock", "x"}, {"unlock", "x", "--force"}, {"unlock", "--all"}, {"unfreeze", "x"}} {
			cmd := elsewhere.lokt(args...)
			cmd.Dir = work
			if r := elsewhere.finish(cmd); r.code != 3 && r.code != 0 {
				t.Errorf("%v: %v", args, r)
			}
		}
	}
	sameTree(t, "looking", map[string]string{p.dir: "d---------", work: "d---------"}, tree(t, p.dir))
	if _, err := os.Lstat(p.root); err == nil {
		t.Error("looking made the root")
	}

	// An empty directory stays empty.
	check(t, os.Mkdir(p.root, 0o700))
	for _, args := range looking("x") {
		p.run(args...)
	}
	if files := tree(t, p.root); len(files) != 1 {
		t.Errorf("looking at an empty root made %v", files)
	}
}

func TestLookingChangesNoByteOfAnyRecord(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x")
	h.noted("x")
	w := p.as("waiter").start(p.as("waiter").lokt("guard", "x", "--wait", "--", "true"))
	p.queued("x", 1)
	p.as("first").want(0, "lock", "leased", "--ttl", "10m")
	p.as("first").want(0, "lock", "frozen")
	p.as("first").want(0, "freeze", "frozen", "--ttl", "10m")
	host, err := os.Hostname()
	check(t, err)
	for name, fields := range map[string]map[string]any{
		"dead":    {"host": host, "pid": p.deadPID(), "pid_start_ns": 1, "acquired_ts": time.Now()},
		"expired": {"host": "elsewhere", "pid": 1, "acquired_ts": time.Now().Add(-time.Hour), "ttl_sec": 60},
	} {
		fields["version"], fields["name"], fields["owner"] = 1, name, "somebody"
		data, err := json.Marshal(fields)
		check(t, err)
		p.plant("locks/"+name+".json", data)
	}
	p.plant("locks/corrupt.json", []byte("{corrupt"))
	p.plant("freezes/damaged.json", []byte("{damaged"))
	p.plant("freezes/thawed.json", []byte(`{"version":1,"name":"thawed","owner":"o","acquired_ts":"2020-01-01T00:00:00Z","ttl_sec":1}`))

	before := tree(t, p.root)
	for _, name := range []string{"x", "leased", "frozen", "dead", "expired", "corrupt", "damaged", "thawed", "none"} {
		for _, args := range looking(name) {
			if args[0] == "help" || args[0] == "version" || args[0] == "completion" || len(args) < 2 && name != "x" {
				continue
			}
			if r := p.run(args...); r.code != 0 && r.code != 2 && r.code != 3 && args[0] != "doctor" && name != "damaged" {
				t.Errorf("%v: %v", args, r)
			}
		}
	}
	after := tree(t, p.root)
	for _, trees := range []map[string]string{before, after} {
		for path := range trees { // the waiter keeps its place by asking again, if this takes long
			if strings.HasSuffix(path, "/queue/x.json") || strings.Contains(path, "/guards/") {
				trees[path] = ""
			}
		}
	}
	sameTree(t, "looking", before, after)
	h.finish()
	w.wait()
}

func TestALiveHoldersRecordIsThereAndWholeWheneverAnybodyLooks(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x", "--ttl", "4s")
	id := p.record("x").LockID
	done := make(chan struct{})
	var looking sync.WaitGroup
	for _, args := range [][]string{{"status"}, {"exists", "x"}, {"why", "x"}, {"status", "--json"}, {"lock", "x"}} {
		looking.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				r := p.as("other").run(args...)
				want := map[string]int{"status": 0, "exists": 0, "why": 2, "lock": 2}[args[0]]
				if r.code != want {
					t.Errorf("%v: %v", args, r)
					return
				}
			}
		})
	}
	looks := 0
	renewed := func() bool {
		looks++
		data, err := os.ReadFile(p.lockPath("x"))
		var r record
		if err != nil || json.Unmarshal(data, &r) != nil || r.LockID != id || r.Owner != "first" {
			t.Errorf("look %d: %v: %s", looks, err, data)
			return true
		}
		return r.Renewals >= 2
	}
	for end := time.Now().Add(atMost); !renewed(); {
		if time.Now().After(end) {
			t.Error("it is not renewed")
			break
		}
	}
	close(done)
	looking.Wait()
	h.finish()
	if n := len(p.audit("x", "auto-prune", "takeover", "lost", "renew-fail")); n > 0 {
		t.Errorf("audited: %v", p.audit("x"))
	}
}
