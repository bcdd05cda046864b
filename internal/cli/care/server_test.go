package care

import (
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
	"github.com/lokt-dev/lokt/store/place"
)

func TestDoctorSaysWhatIsOddAboutAServer(t *testing.T) {
	far := func(i *serverInfo) { i.URL = "http://far:7117" }
	for what, c := range map[string]struct {
		change func(*serverInfo)
		check  string
		says   string
	}{
		"a clock that is ahead":  {func(i *serverInfo) { i.Ahead = time.Minute }, "clock", "1m0s ahead of this host's"},
		"a clock that is behind": {func(i *serverInfo) { i.Ahead = -time.Hour }, "clock", "1h0m0s behind this host's"},
		"a slow answer":          {func(i *serverInfo) { i.RoundTrip = 3 * time.Second }, "round-trip", "took 3s"},
		"no TLS and a token":     {func(i *serverInfo) { far(i); i.token = true }, "tls", "can read the token"},
		"no TLS":                 {far, "tls", "read and change"},
		"open to all":            {far, "scopes", "others can reach it"},
		"a token without scopes": {func(i *serverInfo) { i.Anonymous, i.Caller, i.Scopes = false, "bob", nil }, "scopes", `you are "bob" to the server, without any scope: taking locks needs read and lock too`},
		"no locks":               {func(i *serverInfo) { i.Locks = false }, "locks", "keeps no locks"},
		"no events":              {func(i *serverInfo) { i.Events = false }, "locks", "keeps no events"},
	} {
		t.Run(what, func(t *testing.T) {
			server := clitest.Server(t)
			client, err := httpapi.New(server.URL, httpapi.ClientOptions{})
			if err != nil {
				t.Fatal(err)
			}
			info := serverInfo{URL: server.URL}
			if err := info.ask(t.Context(), client); err != nil {
				t.Fatal(err)
			}
			c.change(&info)
			d := &doctor{}
			d.checkInfo(info)
			d.checkServerLocks(t.Context(), client, info)
			found := false
			for _, one := range d.found {
				if one.Status == place.Fail {
					t.Errorf("a failure: %+v", one)
				}
				if one.Name == c.check && one.Status == place.Warn {
					found = found || strings.Contains(one.Message, c.says)
					if one.Fix == "" && c.check != "locks" {
						t.Errorf("%s: nothing is said about what to do", one.Message)
					}
				}
			}
			if !found {
				t.Errorf("no warning of %s with %q: %+v", c.check, c.says, d.found)
			}
		})
	}
}

func TestDoctorWarnsOfServersThatShareNothing(t *testing.T) {
	for stores, want := range map[string]int{"sqlite": 0, "sqlite sqlite": 2, "memory etcd": 1, "etcd etcd": 0, "postgres postgres": 0} {
		d := &doctor{}
		for store := range strings.FieldsSeq(stores) {
			d.servers = append(d.servers, serverInfo{URL: "http://" + store, About: httpapi.About{Store: store}})
		}
		if d.checkShared(); len(d.found) != want {
			t.Errorf("%s: %+v", stores, d.found)
		}
	}
}

func TestDoctorFindsNothingWrongWithASoundServer(t *testing.T) {
	server := clitest.Server(t)
	d := newDesk(t, "ann").With("LOKT_SERVER="+server.URL, "LOKT_ROOT=", "LOKT_SERVER_TOKEN=secret")
	code, out, errs := d.Lokt("doctor")
	if code != 0 || !strings.Contains(out, "\noverall: ok\n") || strings.Contains(out, "secret") || errs != "" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, out, _ := d.With("LOKT_SEVER=x").Lokt("doctor"); code != 0 || !strings.Contains(out, "LOKT_SEVER means nothing") {
		t.Errorf("exit %d: %s", code, out)
	}
	server.Close()
	code, out, _ = d.Lokt("doctor")
	if code != 1 || !strings.Contains(out, "fail  server") || !strings.Contains(out, "start loktd there") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestPrimeNamesTheServerIfThereIsOne(t *testing.T) {
	server := clitest.Server(t)
	d := newDesk(t, "ann")
	if _, out, _ := d.With("LOKT_SERVER=" + server.URL).Lokt("prime"); !strings.Contains(out, "kept by the server `"+server.URL+"`") {
		t.Errorf("the server is not named: %s", out)
	}
	if _, out, _ := d.Lokt("prime"); strings.Contains(strings.ToLower(out), "server") {
		t.Errorf("a server is named: %s", out)
	}
}

func TestAuditNamesNoProcessWhereThereIsNone(t *testing.T) {
	url := clitest.Server(t).URL
	client, err := httpapi.New(url, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Acquire(t.Context(), lokt.Claim{Name: "network", Owner: lokt.Owner{ID: "curl"}}); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := newDesk(t, "ann").With("LOKT_SERVER=" + url).Lokt("audit"); code != 0 || !strings.Contains(out, "curl") || strings.Contains(out, " 0 ") {
		t.Errorf("exit code %d, %s", code, out)
	}
}
