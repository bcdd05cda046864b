//go:build unix

package daemon_test

import (
	"database/sql"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"
)

// Promise S-145.
func TestRepairSetsADamagedRowAsideAndTheDaemonStarts(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "loktd.db")
	url := "sqlite:" + path
	p := start(t, "--store", url)
	token := p.api().do(t, http.StatusOK, "POST", locks+"a/leases", body{"lease_id": "lease-of-a", "owner": body{"id": "a"}, "ttl_ms": 600_000}).number("holder", "token")
	p.kill()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"INSERT INTO lock_journal (id, body) VALUES (1000, x'00')", "INSERT INTO job_journal (id, body) VALUES (7, x'ff')"} {
		if _, err := db.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := run(t, nil, "--store", url, "--listen", "127.0.0.1:0")
	if code != 1 || !strings.Contains(stderr, "row 1000 of table lock_journal") || !strings.Contains(stderr, "loktd repair FILE") {
		t.Errorf("a damaged row: exit code %d, %s", code, stderr)
	}
	if code, _, stderr := run(t, nil, "repair", "--store", url); code != 64 || !strings.Contains(stderr, "loktd repair FILE") {
		t.Errorf("without a file: exit code %d, %s", code, stderr)
	}
	file := filepath.Join(dir, "aside.jsonl")
	code, out, stderr := run(t, nil, "repair", "--store", url, file)
	if code != 0 || !strings.Contains(out, "2 rows are set aside") {
		t.Fatalf("repair: exit code %d, %s%s", code, out, stderr)
	}
	for _, says := range []string{"lock_journal", "row=1000", "job_journal", "row=7"} {
		if !strings.Contains(stderr, says) {
			t.Errorf("%s is not logged: %s", says, stderr)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("the file has %s, %v", text, err)
	}
	for store, says := range map[string]string{url: file + " is there already", url + ".none": "there is no " + path + ".none"} {
		to := file
		if store != url {
			to += ".none"
		}
		code, _, stderr := run(t, nil, "repair", "--store", store, to)
		if code != 1 || !strings.Contains(stderr, says) || strings.Contains(stderr, "invalid request") {
			t.Errorf("repair of %s: exit code %d, not because %s: %s", store, code, says, stderr)
		}
	}
	p = start(t, "--store", url)
	defer p.stop()
	a := p.api()
	a.with(t, http.StatusOK, "lease-of-a", "PUT", locks+"a/leases/"+publicID("lease-of-a"))
	if after := a.do(t, http.StatusOK, "POST", locks+"b/leases", body{"owner": body{"id": "a"}, "ttl_ms": 60_000}).number("holder", "token"); after <= token+1<<31 {
		t.Errorf("token %d comes after %d", after, token)
	}
	a.do(t, http.StatusOK, "POST", scheduler+"/jobs", body{})
	if code, _, stderr := run(t, nil, "repair", "--store", url, file+"2"); code != 1 || !strings.Contains(stderr, "in use") {
		t.Errorf("while a daemon runs: exit code %d, %s", code, stderr)
	}
}
