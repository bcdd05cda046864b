package daemon_test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// smallDisk is a file system in memory, of its own, which daemons are started on. Others find it below /proc.
type smallDisk struct {
	holder *exec.Cmd
	dir    string
}

// newSmallDisk makes one. Where nobody may make namespaces the test is skipped.
func newSmallDisk(t *testing.T, size string) *smallDisk {
	t.Helper()
	d := &smallDisk{dir: t.TempDir()}
	d.holder = exec.Command("sh", "-c", `mount -t tmpfs -o size=`+size+` small "$1" && echo there && read -r line`, "sh", d.dir)
	d.holder.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	stdin, err := d.holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.holder.Start(); err != nil {
		t.Skipf("no namespace can be made here: %v", err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = d.holder.Wait()
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line == "" {
		t.Skip("nothing can be mounted here")
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		t.Skip("no nsenter is found: install the package util-linux")
	}
	return d
}

// path is where this process finds a file.
func (d *smallDisk) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", d.holder.Process.Pid), d.dir, name)
}

// fill leaves no room.
func (d *smallDisk) fill(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(d.path("filler"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
}

// free gives the room back.
func (d *smallDisk) free(t *testing.T) {
	t.Helper()
	if err := os.Remove(d.path("filler")); err != nil {
		t.Fatal(err)
	}
}

// start starts a daemon whose database is on the disk.
func (d *smallDisk) start(t *testing.T) *proc {
	t.Helper()
	return launch(t, d.command(t), nil)
}

// command returns what start starts.
func (d *smallDisk) command(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := command(t, nil, "--listen", "127.0.0.1:0", "--store", "sqlite:"+filepath.Join(d.dir, "loktd.db"), "--lease-ttl", "1h")
	enter, err := exec.LookPath("nsenter")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = append([]string{enter, "-t", fmt.Sprint(d.holder.Process.Pid), "-U", "-m", "--preserve-credentials", "--", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = enter
	return cmd
}

// Promise S-102.
func TestOnAFullDiskNothingAcknowledgedIsLostAndItGoesOnByItself(t *testing.T) {
	disk := newSmallDisk(t, "8m")
	p := disk.start(t)
	a := p.api()
	claim := func(i int) (id string, answered answer) {
		t.Helper()
		id = lokt.NewLeaseID()
		answered, err := a.try("POST", fmt.Sprint(locks, "held-", i, "/leases"), body{"lease_id": id, "owner": body{"id": "a"}, "ttl_ms": 600_000})
		if err != nil {
			t.Fatal(err)
		}
		return id, answered
	}
	held := map[int]string{}
	refused := 0
	for i := range 200 {
		if i >= 20 {
			disk.fill(t)
		}
		switch id, answered := claim(i); answered.status {
		case http.StatusOK:
			held[i] = id
		case http.StatusServiceUnavailable:
			refused++
			if !strings.Contains(answered.body, "the disk is full: make room") {
				t.Fatalf("a claim is answered with %s", answered.body)
			}
		default:
			t.Fatalf("a claim is answered with %d %s", answered.status, answered.body)
		}
	}
	if len(held) < 20 || refused == 0 {
		t.Fatalf("%d locks are held, %d claims were refused", len(held), refused)
	}
	a.do(t, http.StatusOK, "GET", "/v1/locks", nil)
	disk.free(t)
	eventually(t, "claims are granted again", func() bool {
		id, answered := claim(1000)
		if answered.status == http.StatusOK {
			held[1000] = id
		}
		return answered.status == http.StatusOK
	})
	p.kill()
	p = disk.start(t)
	for i, id := range held {
		p.api().renew(t, http.StatusOK, fmt.Sprint("held-", i), id)
	}
	p.stop()
}

// Promise S-102. Where the room is missing is said, whoever misses it.
func TestWhoNeedsRoomOnAFullDiskIsTold(t *testing.T) {
	d := newSmallDisk(t, "2m")
	says := func(what string, cmd *exec.Cmd) {
		t.Helper()
		timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		text, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(text), "the disk is full: make room") {
			t.Errorf("%s: %v, %s", what, err, text)
		}
	}
	p := d.start(t)
	d.fill(t)
	says("a backup", command(t, nil, "backup", filepath.Join(t.TempDir(), "copy"), "--listen", p.address()))
	p.stop()
	d.fill(t)
	says("a start", d.command(t))
	if err := os.Remove(d.path("loktd.db-mark")); err != nil {
		t.Fatal(err)
	}
	d.fill(t)
	says("a start without a mark", d.command(t))
	d.free(t)
	d.start(t).stop()
}
