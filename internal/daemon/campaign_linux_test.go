package daemon_test

import (
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// clockBack makes a database that no daemon uses what it would be if something had been renewed that much later, and the host's
// clock had been set back since.
func clockBack(t *testing.T, file string, by time.Duration) {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var doc string
	if err := db.QueryRow("SELECT doc FROM state").Scan(&doc); err != nil {
		t.Fatal(err)
	}
	const key = `"clock":"`
	before, rest, _ := strings.Cut(doc, key)
	at, after, _ := strings.Cut(rest, `"`)
	last, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	doc = before + key + last.Add(by).Format(time.RFC3339Nano) + `"` + after
	sum := uint32(0)
	for _, part := range []string{"state", doc, ""} { // as sqlstore's checksum
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), []byte(part))
	}
	if _, err := db.Exec("UPDATE state SET doc = ?, sum = ?", doc, sum); err != nil {
		t.Fatal(err)
	}
}

// What is acknowledged survives kill -9, standing still, full disks and clocks that are set back, in turn and under load, for
// LOKT_FAULT_TIME; LOKT_SEED decides in which order.
//
// Promises S-96, S-102, S-103.
func TestWhatWasAcknowledgedSurvivesFaults(t *testing.T) {
	most, err := time.ParseDuration(os.Getenv("LOKT_FAULT_TIME"))
	if err != nil {
		if most = 2 * time.Minute; os.Getenv("LOKT_SOAK") == "" {
			t.Skip("takes as long as LOKT_FAULT_TIME says")
		}
	}
	seed, err := strconv.ParseUint(os.Getenv("LOKT_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("LOKT_SEED=%d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	injected, checked := map[string]int{}, map[string]int{}
	for end := time.Now().Add(most); time.Now().Before(end); {
		file := filepath.Join(t.TempDir(), "loktd.db")
		l := newLedger(t)
		for round := 0; round < 15 && (round < 4 || time.Now().Before(end)); round++ { // what is audited grows
			since := time.Now()
			p := start(t, "--store", "sqlite:"+file, "--capacity", "100000", "--lease-ttl", "10m")
			a := p.api()
			l.audit(a, since)
			checked["ledgers compared"]++
			if t.Failed() {
				t.Fatalf("in round %d; the log:\n%s", round, p.log)
			}
			crew := l.crew(a)
			switch dice.IntN(4) {
			case 0:
				p.signal(syscall.SIGSTOP)
				time.Sleep(time.Duration(dice.IntN(2000)) * time.Millisecond)
				p.signal(syscall.SIGCONT)
				injected["loktd stands still"]++
			case 1:
				l.fill(p, a, crew)
				injected["the disk is full"]++
				l.audit(a, since)
				checked["ledgers compared"]++
				crew = l.crew(a)
			}
			time.Sleep(time.Duration(dice.IntN(60)) * time.Millisecond) // wherever it is by then
			p.kill()
			crew.Wait()
			injected["loktd is killed"]++
			if dice.IntN(3) == 0 {
				clockBack(t, file, time.Duration(dice.Int64N(int64(5*time.Minute)))) // less than leases last
				injected["the clock is set back while leases last"]++
			}
		}
		checked["jobs acknowledged"] += len(l.submitted)
		checked["jobs completed"] += len(l.completed)
		checked["locks granted"] += l.grants
		checked["requests refused for want of room"] += l.refused
	}
	for what, counts := range map[string]map[string]int{"injected": injected, "checked": checked} {
		b, err := json.Marshal(counts)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("counted %s: %s", what, b)
	}
}

// fill lets no file of the daemon grow, which to it is a full disk, until requests were refused and their clients gave up; then
// waits until it goes on by itself.
func (l *ledger) fill(p *proc, a *api, crew interface{ Wait() }) {
	l.t.Helper()
	limit := func(bytes uint64) {
		l.t.Helper()
		if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil); err != nil {
			l.t.Fatal(err)
		}
	}
	l.mu.Lock()
	l.full = true
	l.mu.Unlock()
	limit(4096)
	crew.Wait()
	limit(unix.RLIM_INFINITY)
	eventually(l.t, "it goes on by itself", func() bool {
		ans, err := a.try("POST", scheduler+"/jobs", body{})
		if err == nil && ans.status == http.StatusOK {
			l.submitted = append(l.submitted, ans.text("job_id"))
		}
		return err == nil && ans.status == http.StatusOK
	})
	l.full = false
}
