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
			if strings.HasSuffix(path, "/queue/.x.json.spare") { // what it was before
				delete(trees, path)
			}
		}
	}
	sameTree(t, "looking", before, after)
	h.finish()
	w.wait()
}

func TestALiveHoldersRecordIsThereAndWholeWheneverAnybodyLooks(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x", "--ttl", "8s")
	id := p.record("x").LockID
	done := make(chan struct{})
	var looking sync.WaitGroup
	for _, args := range [][]string{{"status"}, {"exists", "x"}, {"why", "x"}, {"status", "--json"}, {"lock", "x"}} {
		looking.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(100 * time.Millisecond):
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
	for end := time.Now().Add(atMost); !renewed(); time.Sleep(100 * time.Microsecond) {
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

func TestDoctorTellsAFullAndAReadOnlyFileSystemFromASoundOne(t *testing.T) {
	p := newPlace(t)
	args := []string{"--mount"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	path, err := program()
	check(t, err)
	const script = `
mkdir -p "$LOKT_ROOT" && mount -t tmpfs -o size=4m,mode=700 tmpfs "$LOKT_ROOT" || exit 99
"$1" lock x || exit 98
echo sound; "$1" doctor; echo "exit $?"
dd if=/dev/zero of="$LOKT_ROOT/fill" bs=4k 2>/dev/null
echo full; "$1" doctor; echo "exit $?"
rm "$LOKT_ROOT/fill"; mount -o remount,ro "$LOKT_ROOT" || exit 97
echo read-only; "$1" doctor; echo "exit $?"
`
	r := p.finish(p.command("unshare", append(args, "sh", "-c", script, "sh", path)...))
	if r.code == 99 || r.code == 1 {
		t.Skipf("this machine lets nobody mount: %v", r)
	}
	if r.code != 0 {
		t.Fatal(r)
	}
	_, sound, _ := strings.Cut(r.out, "\nsound\n")
	sound, full, _ := strings.Cut(sound, "\nfull\n")
	full, readOnly, _ := strings.Cut(full, "\nread-only\n")
	contains(t, sound, "ok    space", "warn  disk                 tmpfs", "not kept: 1 (S-52)", "overall: warn", "exit 0") // Promise S-226.
	contains(t, full, "fail  space", "has 0 KiB left", "make room", "exit 1")
	contains(t, readOnly, "fail  root", "read-only file system", "mount the file system for writing", "exit 1")
	if strings.Contains(readOnly, "repair its permissions") {
		t.Errorf("it is misleading about a read-only file system: %s", readOnly)
	}
}
