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

	"github.com/lokt-dev/lokt"
)

// tellsFull is in the log of a daemon that uses the reserve.
const tellsFull = `msg="the disk is full: make room"`

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

// size returns how long a file is.
func (d *smallDisk) size(t *testing.T, name string) int64 {
	t.Helper()
	info, err := os.Stat(d.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// fill has no room left.
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

// Promise S-164.
func TestOnADiskThatIsFullWhatEndsSomethingIsStored(t *testing.T) {
	disk := newSmallDisk(t, "8m")
	p := disk.start(t)
	a := p.api()
	var held, leases []string
	for i := range 30 {
		held = append(held, lokt.NewLeaseID())
		a.do(t, http.StatusOK, "POST", fmt.Sprint(locks, "held-", i, "/leases"), body{"lease_id": held[i], "owner": body{"id": "a"}, "ttl_ms": 600_000})
		a.do(t, http.StatusOK, "POST", scheduler+"/jobs", body{"units": 1})
		leases = append(leases, a.do(t, http.StatusOK, "POST", scheduler+"/leases/request", body{"worker_id": "w"}).text("lease", "lease_id"))
	}
	if size := disk.size(t, "loktd.db.reserve"); size != 1<<20 {
		t.Fatalf("the reserve has %d bytes", size)
	}
	// Nothing more fits, neither on the disk nor in what the log of transactions has.
	refused := 0
	for i := 0; refused < 3; i++ {
		disk.fill(t)
		ans, err := a.try("POST", fmt.Sprint(locks, "more-", i, "/leases"), body{"owner": body{"id": "a"}, "ttl_ms": 600_000})
		if err != nil {
			t.Fatal(err)
		}
		if ans.status == http.StatusServiceUnavailable {
			refused++
			if !strings.Contains(ans.body, "the disk is full: make room") {
				t.Errorf("a claim is answered with %s", ans.body)
			}
		}
	}
	reserved := func() float64 {
		bytes, _ := a.metric(t, fmt.Sprintf("lokt_store_reserve_bytes{path=%q}", filepath.Join(disk.dir, "loktd.db")))
		return bytes
	}
	if bytes := reserved(); bytes != 1<<20 {
		t.Errorf("that the reserve is kept is told with %v bytes", bytes)
	}
	if strings.Contains(p.log.String(), tellsFull) {
		t.Error("the reserve is used for what is new")
	}
	again := 0
	for i := range held {
		a.with(t, http.StatusOK, held[i], "PUT", fmt.Sprint(locks, "held-", i, "/leases/", publicID(held[i])))
		a.with(t, http.StatusOK, held[i], "DELETE", fmt.Sprint(locks, "held-", i, "/leases/", publicID(held[i])))
		a.with(t, http.StatusNotFound, held[i], "DELETE", fmt.Sprint(locks, "held-", i, "/leases/", publicID(held[i]))) // the answer was lost, perhaps
		eventually(t, "a job is completed", func() bool {                                                               // the scheduler pauses after a failure
			ans, err := a.try("POST", scheduler+"/leases/"+leases[i]+"/complete", body{"worker_id": "w", "status": "completed"})
			if again++; again > 500 {
				t.Fatalf("a completion is answered with %d %s, %v", ans.status, ans.body, err)
			}
			return err == nil && ans.status == http.StatusOK
		})
		disk.fill(t)
	}
	if bytes := reserved(); bytes >= 1<<20 || bytes != float64(disk.size(t, "loktd.db.reserve")) {
		t.Errorf("that the reserve is used is told with %v bytes", bytes)
	}
	t.Logf("%d of %d answers to completions were errors; %d bytes of the reserve are left", again-len(held), again, disk.size(t, "loktd.db.reserve"))
	if n := strings.Count(p.log.String(), tellsFull); n != 1 {
		t.Errorf("that the disk is full is logged %d times:\n%s", n, p.log)
	}
	p.kill()
	p = disk.start(t)
	a = p.api()
	disk.free(t)
	n := 0
	eventually(t, "the reserve is made again", func() bool {
		if n++; n > 2000 {
			t.Fatalf("it is not made again; the log:\n%s", p.log)
		}
		_, err := a.try("POST", scheduler+"/jobs", body{})
		return err == nil && disk.size(t, "loktd.db.reserve") == 1<<20
	})
	p.stop()
}

// Promise S-164.
func TestADatabaseIsOpenedOnADiskThatIsFull(t *testing.T) {
	disk := newSmallDisk(t, "8m")
	p := disk.start(t)
	held := lokt.NewLeaseID()
	p.api().do(t, http.StatusOK, "POST", locks+"held/leases", body{"lease_id": held, "owner": body{"id": "a"}, "ttl_ms": 600_000})
	p.stop() // which removes the log of transactions
	disk.fill(t)
	p = disk.start(t)
	a := p.api()
	if !strings.Contains(p.log.String(), tellsFull) {
		t.Errorf("it is not logged that the disk is full:\n%s", p.log)
	}
	a.with(t, http.StatusOK, held, "DELETE", locks+"held/leases/"+publicID(held))
	disk.free(t)
	p.stop()
	p = disk.start(t)
	if size := disk.size(t, "loktd.db.reserve"); size != 1<<20 {
		t.Errorf("the reserve has %d bytes", size)
	}
	p.stop()
}

// Promise S-164.
func TestADaemonThatFindsNoRoomToStartSaysSo(t *testing.T) {
	disk := newSmallDisk(t, "8m")
	p := disk.start(t)
	p.stop()
	if err := os.Remove(disk.path("loktd.db.reserve")); err != nil {
		t.Fatal(err)
	}
	disk.fill(t)
	out, err := disk.command(t).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the disk is full: make room") {
		t.Errorf("it ends with %v:\n%s", err, out)
	}
}

// Promise S-164.
func TestOnADiskThatStaysFullADaemonIsStartedAgainAndAgain(t *testing.T) {
	disk := newSmallDisk(t, "8m")
	p := disk.start(t)
	held := lokt.NewLeaseID()
	p.api().do(t, http.StatusOK, "POST", locks+"held/leases", body{"lease_id": held, "owner": body{"id": "a"}, "ttl_ms": 600_000})
	for range 4 {
		p.stop()
		disk.fill(t)
		p = disk.start(t)
		disk.fill(t)
	}
	disk.free(t)
	p.api().with(t, http.StatusOK, held, "DELETE", locks+"held/leases/"+publicID(held))
	p.stop()
}

// Promise S-164.
func TestWhatWasGivenUpToStartIsNotLostToOthersWhoFillTheDisk(t *testing.T) {
	disk := newSmallDisk(t, "8m")
	p := disk.start(t)
	a := p.api()
	var held []string
	for i := range 300 {
		held = append(held, lokt.NewLeaseID())
		a.do(t, http.StatusOK, "POST", fmt.Sprint(locks, "held-", i, "/leases"), body{"lease_id": held[i], "owner": body{"id": "a"}, "ttl_ms": 600_000})
	}
	p.stop()
	disk.fill(t)
	p = disk.start(t)
	a = p.api()
	for i := range held {
		disk.fill(t)
		a.with(t, http.StatusOK, held[i], "DELETE", fmt.Sprint(locks, "held-", i, "/leases/", publicID(held[i])))
	}
}

// Promise S-164.
func TestWhatIsNewLeavesTheReserveToWhatEndsSomething(t *testing.T) {
	disk := newSmallDisk(t, "8m")
	p := disk.start(t)
	a := p.api()
	var held []string
	for i := range 60 {
		held = append(held, lokt.NewLeaseID())
		a.do(t, http.StatusOK, "POST", fmt.Sprint(locks, "held-", i, "/leases"), body{"lease_id": held[i], "owner": body{"id": "a"}, "ttl_ms": 600_000})
	}
	disk.fill(t)
	n := 0
	crowd := func() { // those who are refused come again
		for range 40 {
			n++
			if _, err := a.try("POST", fmt.Sprint(locks, "new-", n, "/leases"), body{"owner": body{"id": "b"}, "ttl_ms": 600_000}); err != nil {
				t.Fatal(err)
			}
		}
		disk.fill(t)
	}
	for i := range held {
		crowd()
		a.with(t, http.StatusOK, held[i], "DELETE", fmt.Sprint(locks, "held-", i, "/leases/", publicID(held[i])))
	}
	disk.free(t)
	a.do(t, http.StatusOK, "POST", locks+"then/leases", body{"owner": body{"id": "b"}, "ttl_ms": 600_000})
	p.stop()
}
