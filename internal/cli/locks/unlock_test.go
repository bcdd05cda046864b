package locks

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
	"github.com/lokt-dev/lokt/lockfile"
	"github.com/lokt-dev/lokt/store/memstore"
)

func TestUnlockEndsWithTheRightCode(t *testing.T) {
	past := time.Now().Add(-time.Hour)
	expired := lockfile.Record{Name: "x", LockID: "1", Owner: "zoe", Host: "h", TTLSec: 60, AcquiredTS: past, Kind: "lease"}
	for _, test := range []struct {
		name    string
		arrange func(d clitest.Desk)
		args    string
		code    int
		says    string
		left    bool // somebody holds the lock afterwards
	}{
		{"own", func(d clitest.Desk) { d.Must("lock", "x") }, "", 0, "unlocked x", false},
		{"free", func(clitest.Desk) {}, "", 3, `nobody holds "x"`, false},
		{"free, forced", func(clitest.Desk) {}, "--force", 3, `nobody holds "x"`, false},
		{"another's", func(d clitest.Desk) { d.As("zoe").Must("lock", "x") }, "", 4, "held by zoe", true},
		{"another's, forced", func(d clitest.Desk) { d.As("zoe").Must("lock", "x") }, "--force", 0, "ended the hold of zoe", false},
		{"another's, not stale", func(d clitest.Desk) { d.As("zoe").Must("lock", "x") }, "--break-stale", 2, "not stale", true},
		{"another's, expired", func(d clitest.Desk) { d.Record("locks", expired) }, "", 3, "stale, and has been removed", false},
		{"another's, expired, broken", func(d clitest.Desk) { d.Record("locks", expired) }, "--break-stale", 0, "ended the hold of zoe", false},
		{"own, expired", func(d clitest.Desk) { own := expired; own.Owner = "ann"; d.Record("locks", own) }, "", 0, "had expired", false},
		{"frozen only", func(d clitest.Desk) { d.Must("freeze", "x", "--ttl", "1m") }, "", 3, "lokt unfreeze x", false},
		{"corrupt", func(d clitest.Desk) { d.Write("locks/x.json", "{") }, "", 3, "lokt unlock x --force", false},
		{"corrupt, forced", func(d clitest.Desk) { d.Write("locks/x.json", "{") }, "--force", 0, "its record was damaged", false},
		{"corrupt, stale", func(d clitest.Desk) { d.Write("locks/x.json", "{") }, "--break-stale", 0, "its record was damaged", false},
		{"newer", func(d clitest.Desk) { d.Write("locks/x.json", clitest.Newer) }, "", 1, "lokt unlock x --force", true},
		{"newer, forced", func(d clitest.Desk) { d.Write("locks/x.json", clitest.Newer) }, "--force", 0, "could not be read", false},
		{"newer, one hold", func(d clitest.Desk) { d.Write("locks/x.json", clitest.Newer) }, "--force --id 1", 64, "leave out --id", true},
		{"own by ID", func(d clitest.Desk) { own := expired; own.Owner, own.TTLSec = "ann", 0; d.Record("locks", own) }, "--id 1", 0, "unlocked x", false},
		{"another's by ID", func(d clitest.Desk) { other := expired; other.TTLSec = 0; d.Record("locks", other) }, "--id 1", 4, "held by zoe", true},
		{"another's by ID, forced", func(d clitest.Desk) { other := expired; other.TTLSec = 0; d.Record("locks", other) }, "--force --id 1", 0, "zoe", false},
		{"no such ID", func(d clitest.Desk) { d.Must("lock", "x") }, "--force --id 1", 3, "no hold of", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDesk(t, "ann")
			test.arrange(d)
			code, out, errs := d.Lokt(append([]string{"unlock", "x"}, strings.Fields(test.args)...)...)
			if code != test.code || !strings.Contains(out+errs, test.says) {
				t.Errorf("exit %d, not %d: %s%s", code, test.code, out, errs)
			}
			if (code == 0) != (out != "") {
				t.Errorf("exit %d, and writes %q to standard output", code, out)
			}
			held, _, _ := d.Lokt("exists", "x")
			if left := held != app.ExitNotFound; left != test.left {
				t.Errorf("exists ends with %d", held)
			}
		})
	}
}

// Promise S-285.
func TestForceSaysThatWhatItSawHasPassedToAnother(t *testing.T) {
	m := lokt.NewManager(memstore.New())
	take := func(owner string) {
		if _, err := m.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: owner}, Limit: 2}); err != nil {
			t.Error(err)
		}
	}
	take("zoe")
	handler := httpapi.NewHandler(httpapi.Config{Locks: m})
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet { // unlock has looked
			_, _ = m.Release(r.Context(), lokt.Target{Name: "x", Force: true})
			take("bob")
			take("eve")
		}
		handler.ServeHTTP(w, r)
	}))
	defer far.Close()
	code, out, errs := newDesk(t, "ann").With("LOKT_SERVER="+far.URL).Lokt("unlock", "x", "--force")
	if code != app.ExitBlocked || !strings.Contains(errs, `"x" has passed to another meanwhile: it is held by bob`) || !strings.Contains(errs, ", and by eve") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

func TestForceTellsTheAuditLogWhoDidIt(t *testing.T) {
	for args, event := range map[string]lokt.EventType{"--force": lokt.EventForceBreak, "--break-stale": lokt.EventStaleBreak, "": lokt.EventRelease} {
		d := newDesk(t, "ann")
		owner, ttl := "zoe", int64(60)
		if args == "" {
			owner, ttl = "ann", 0
		}
		d.Record("locks", lockfile.Record{Name: "x", LockID: "1", Owner: owner, Host: "h", Kind: "lease", TTLSec: ttl, AcquiredTS: time.Now().Add(-time.Hour)})
		d.Must(append([]string{"unlock", "x", "--id", "1"}, strings.Fields(args)...)...)
		log, err := os.ReadFile(filepath.Join(d.Dir, "root", "audit.log"))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`"event":%q,"name":"x","lock_id":"1","owner":%q`, event, owner); !strings.Contains(string(log), want) {
			t.Errorf("unlock %s: no %s in %s", args, want, log)
		}
		if by := strings.Contains(string(log), `"by":"ann@`); by != (args != "") {
			t.Errorf("unlock %s: %s", args, log)
		}
	}
}

func TestReadingCommandsCreateNothing(t *testing.T) {
	for _, args := range [][]string{
		{"status"}, {"status", "x"}, {"status", "--prune-expired"}, {"status", "x", "--prune-expired"}, {"exists", "x"}, {"why", "x"},
		{"unlock", "x"}, {"unlock", "x", "--force"}, {"unlock", "--all"}, {"unfreeze", "x"}, {"unfreeze", "x", "--force"},
		{"freeze", "../x", "--ttl", "1m"}, {"freeze", "x"}, {"unlock", "../x", "--force"},
	} {
		d := newDesk(t, "ann")
		d.Lokt(args...)
		if entries, err := os.ReadDir(d.Dir); err != nil || len(entries) > 0 {
			t.Errorf("%v made %v, %v", args, entries, err)
		}
	}
}

func TestErrorsAreJSONWhenAskedFor(t *testing.T) {
	d := newDesk(t, "ann")
	d.As("zoe").Must("lock", "held")
	d.As("zoe").Must("freeze", "ice", "--ttl", "1m")
	d.Write("locks/x.json", clitest.Newer)
	for _, test := range []struct {
		args string
		exit int
		code string
	}{
		{"unlock held", 4, "not_owner"}, {"unlock free", 3, "not_found"}, {"unlock ../x", 64, "invalid"}, {"unlock", 64, "usage"},
		{"unlock x", 1, "damaged"}, {"status free", 3, "not_found"}, {"status a b", 64, "usage"}, {"status ..", 64, "invalid"},
		{"exists x", 1, "damaged"}, {"exists ..", 64, "invalid"}, {"why ..", 64, "invalid"}, {"why", 64, "usage"},
		{"freeze free", 64, "usage"}, {"freeze x --ttl 1m", 1, "damaged"}, {"freeze .. --ttl 1m", 64, "invalid"},
		{"unfreeze free", 3, "not_found"}, {"unfreeze ice", 4, "not_owner"}, {"unfreeze x", 1, "damaged"}, {"unfreeze ..", 64, "invalid"},
	} {
		var body struct {
			Error struct{ Code, Message string }
		}
		if exit := d.JSON(&body, strings.Fields(test.args)...); exit != test.exit || body.Error.Code != test.code || body.Error.Message == "" {
			t.Errorf("%s: exit %d, %+v", test.args, exit, body)
		}
	}
}

func TestEveryCommandHelpsWithAnExample(t *testing.T) {
	for _, name := range []string{"unlock", "status", "exists", "why", "freeze", "unfreeze"} {
		out := newDesk(t, "ann").Must(name, "--help")
		if !strings.Contains(out, "Examples:\n") || !strings.Contains(out, "lokt "+name) || !strings.Contains(out, "--json") {
			t.Errorf("lokt %s --help writes\n%s", name, out)
		}
	}
}

func TestUnlockByForceSpeaksOfNoProcessThatIsNotKnown(t *testing.T) {
	url := clitest.Server(t).URL
	client, err := httpapi.New(url, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	run := lokt.Claim{Name: "network", Owner: lokt.Owner{ID: "terraform"}, Strict: true, Attended: true}
	if _, err := client.Acquire(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	code, _, says := clitest.New(t, "ann", Commands()).With("LOKT_SERVER="+url).Lokt("unlock", "network", "--force")
	if code != 0 || !strings.Contains(says, "guard of terraform is still running") {
		t.Errorf("exit code %d, %s", code, says)
	}
}

func TestADamagedRecordOfAServerIsForWhoeverRunsIt(t *testing.T) {
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(`{"type":"about:blank","title":"Stored lock cannot be read","status":500,"code":"damaged","detail":"lock x: its checksum is another"}`))
	}))
	defer far.Close()
	d := newDesk(t, "ann").With("LOKT_SERVER=" + far.URL)
	for _, line := range []string{"why x", "lock x", "unlock x --force"} {
		if code, out, errs := d.Lokt(strings.Fields(line)...); code == 0 || !strings.Contains(out+errs, "loktd check") || strings.Contains(out+errs, "lokt unlock x") {
			t.Errorf("%s: exit %d: %s%s", line, code, out, errs)
		}
	}
}
