package care

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
)

func TestDoctorSaysWhatIsOddAboutAServer(t *testing.T) {
	for what, c := range map[string]struct {
		env    []string
		change func(*clitest.Server)
		check  string
		says   string
	}{
		"a clock that is ahead":         {nil, func(f *clitest.Server) { f.Info.Ahead = time.Minute }, "clock", "1m0s ahead of this host's"},
		"a clock that is behind":        {nil, func(f *clitest.Server) { f.Info.Ahead = -time.Hour }, "clock", "1h0m0s behind this host's"},
		"a slow answer":                 {nil, func(f *clitest.Server) { f.Info.RoundTrip = 3 * time.Second }, "round-trip", "took 3s"},
		"no TLS and a token":            {[]string{"LOKT_SERVER=http://far:7117", "LOKT_SERVER_TOKEN=secret"}, nil, "tls", "can read the token"},
		"no TLS":                        {[]string{"LOKT_SERVER=http://far:7117"}, nil, "tls", "read and change"},
		"open to all":                   {[]string{"LOKT_SERVER=http://far:7117"}, func(f *clitest.Server) { f.Info.URL = "http://far:7117" }, "scopes", "others can reach it"},
		"a token without scopes":        {nil, func(f *clitest.Server) { f.Info.Anonymous, f.Info.Caller = false, "bob" }, "scopes", `you are "bob" to the server, without any scope: taking locks needs read and lock too`},
		"no locks":                      {nil, func(f *clitest.Server) { f.Info.Locks = false }, "locks", "keeps no locks"},
		"no events":                     {nil, func(f *clitest.Server) { f.Info.Events = false }, "locks", "keeps no events"},
		"a variable that means nothing": {[]string{"LOKT_SEVER=x"}, nil, "environment", "LOKT_SEVER means nothing"},
	} {
		t.Run(what, func(t *testing.T) {
			a := clitest.NewAtServer(t, all(), c.env...)
			if c.change != nil {
				c.change(a.Server)
			}
			code, out, errs := a.Lokt("doctor", "--json")
			var v struct {
				Checks  []check
				Overall string
			}
			if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 || v.Overall != checkWarn {
				t.Fatalf("exit %d, %v: %s%s", code, err, out, errs)
			}
			found := false
			for _, one := range v.Checks {
				if strings.Contains(one.Message, "secret") {
					t.Errorf("the token is told: %s", out)
				}
				if one.Name == c.check && one.Status == checkWarn {
					found = found || strings.Contains(one.Message, c.says)
					if one.Fix == "" && c.check != "locks" {
						t.Errorf("%s: nothing is said about what to do", one.Message)
					}
				}
			}
			if !found {
				t.Errorf("no warning of %s with %q: %s", c.check, c.says, out)
			}
		})
	}
}

func TestDoctorFindsNothingWrongWithASoundServer(t *testing.T) {
	a := clitest.NewAtServer(t, all())
	code, out, errs := a.Lokt("doctor")
	if code != 0 || !strings.Contains(out, "\noverall: ok\n") || errs != "" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	a.Server.Down = fmt.Errorf("%w: refused", lokt.ErrUnavailable)
	code, out, _ = a.Lokt("doctor")
	if code != 1 || !strings.Contains(out, "fail  server") || !strings.Contains(out, "start loktd there") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestPrimeNamesTheServerIfThereIsOne(t *testing.T) {
	a := clitest.NewAtServer(t, all())
	if _, out, _ := a.Lokt("prime"); !strings.Contains(out, "kept by the server `http://127.0.0.1:7117`") {
		t.Errorf("the server is not named: %s", out)
	}
	if _, out, _ := newDesk(t, "ann").Lokt("prime"); strings.Contains(strings.ToLower(out), "server") {
		t.Errorf("a server is named: %s", out)
	}
}
