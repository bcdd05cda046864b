package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/memstore"
)

// fakeServer is a Remote in this process.
type fakeServer struct {
	store *memstore.Store
	info  ServerInfo
	down  error // what Ask answers
}

func (f *fakeServer) Locks() lokt.Service                     { return lokt.NewManager(f.store) }
func (f *fakeServer) Events() lokt.EventLog                   { return f.store }
func (f *fakeServer) Jobs() jobs.Service                      { return nil }
func (f *fakeServer) Know(...string)                          {}
func (f *fakeServer) Close() error                            { return nil }
func (f *fakeServer) Ask(context.Context) (ServerInfo, error) { return f.info, f.down }

// Shown hides all of a lease ID but the end.
func (f *fakeServer) Shown(leaseID string) string {
	if strings.HasPrefix(leaseID, "L-") {
		return leaseID
	}
	return "L-" + leaseID[max(0, len(leaseID)-4):]
}

// atServer is a desk whose commands are about a server.
type atServer struct {
	t      *testing.T
	server *fakeServer
	env    map[string]string
	asked  []Server // that were dialled
}

func newAtServer(t *testing.T, env ...string) *atServer {
	a := &atServer{t: t, server: &fakeServer{store: memstore.New()}, env: map[string]string{"LOKT_SERVER": "http://127.0.0.1:7117", "LOKT_OWNER": "ann"}}
	a.server.info = ServerInfo{URL: "http://127.0.0.1:7117", Version: "dev", Store: "memory", Anonymous: true, Locks: true, Events: true, RoundTrip: time.Millisecond}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		a.env[k] = v
	}
	return a
}

func (a *atServer) lokt(args ...string) (code int, out, errs string) {
	a.t.Helper()
	var stdout, stderr bytes.Buffer
	dir := a.t.TempDir()
	code = run(args, Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		Getenv: func(key string) string { return a.env[key] },
		Environ: func() []string {
			var all []string
			for k, v := range a.env {
				all = append(all, k+"="+v)
			}
			return all
		},
		Dir: func() (string, error) { return dir, nil },
	}, func(s Server) (Remote, error) {
		a.asked = append(a.asked, s)
		return a.server, nil
	})
	return code, stdout.String(), stderr.String()
}

func TestDoctorSaysWhatIsOddAboutAServer(t *testing.T) {
	for what, c := range map[string]struct {
		env    []string
		change func(*fakeServer)
		check  string
		says   string
	}{
		"a clock that is ahead":         {nil, func(f *fakeServer) { f.info.Ahead = time.Minute }, "clock", "1m0s ahead of this host's"},
		"a clock that is behind":        {nil, func(f *fakeServer) { f.info.Ahead = -time.Hour }, "clock", "1h0m0s behind this host's"},
		"a slow answer":                 {nil, func(f *fakeServer) { f.info.RoundTrip = 3 * time.Second }, "round-trip", "took 3s"},
		"no TLS and a token":            {[]string{"LOKT_SERVER=http://far:7117", "LOKT_TOKEN=secret"}, nil, "tls", "can read the token"},
		"no TLS":                        {[]string{"LOKT_SERVER=http://far:7117"}, nil, "tls", "read and change"},
		"open to all":                   {[]string{"LOKT_SERVER=http://far:7117"}, func(f *fakeServer) { f.info.URL = "http://far:7117" }, "scopes", "others can reach it"},
		"a token without scopes":        {nil, func(f *fakeServer) { f.info.Anonymous, f.info.Caller = false, "bob" }, "scopes", `you are "bob" to the server, without any scope: taking locks needs read and lock too`},
		"no locks":                      {nil, func(f *fakeServer) { f.info.Locks = false }, "locks", "keeps no locks"},
		"no events":                     {nil, func(f *fakeServer) { f.info.Events = false }, "locks", "keeps no events"},
		"a variable that means nothing": {[]string{"LOKT_SEVER=x"}, nil, "environment", "LOKT_SEVER means nothing"},
	} {
		t.Run(what, func(t *testing.T) {
			a := newAtServer(t, c.env...)
			if c.change != nil {
				c.change(a.server)
			}
			code, out, errs := a.lokt("doctor", "--json")
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
	a := newAtServer(t)
	code, out, errs := a.lokt("doctor")
	if code != 0 || !strings.Contains(out, "\noverall: ok\n") || errs != "" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	a.server.down = fmt.Errorf("%w: refused", lokt.ErrUnavailable)
	code, out, _ = a.lokt("doctor")
	if code != 1 || !strings.Contains(out, "fail  server") || !strings.Contains(out, "start loktd there") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestTheTokenComesFromWhereItIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-the-file\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		env  []string
		want string
	}{
		"nothing":                         {nil, ""},
		"the variable":                    {[]string{"LOKT_TOKEN=mine", "LOKT_TOKEN_FILE=" + file}, "mine"},
		"the file":                        {[]string{"LOKT_TOKEN_FILE=" + file}, "of-the-file"},
		"digits outside of a guard":       {[]string{"LOKT_TOKEN=123"}, "123"},
		"fencing tokens":                  {[]string{"LOKT_TOKEN=12,13", "LOKT_HELD=a=x,b=y"}, ""},
		"fencing tokens, and the guard's": {[]string{"LOKT_TOKEN=12,13", "LOKT_HELD=a=x,b=y", "LOKT_SERVER_TOKEN=handed-on"}, "handed-on"},
		"fencing tokens, and the file":    {[]string{"LOKT_TOKEN=12", "LOKT_HELD=a=x", "LOKT_TOKEN_FILE=" + file}, "of-the-file"},
		"another inside of a guard":       {[]string{"LOKT_TOKEN=other", "LOKT_HELD=a=x", "LOKT_SERVER_TOKEN=handed-on"}, "other"},
	} {
		a := newAtServer(t, c.env...)
		if code, _, errs := a.lokt("exists", "x"); code != 3 || len(a.asked) != 1 || a.asked[0].Token != c.want {
			t.Errorf("%s: exit %d, asked %+v, %s", what, code, a.asked, errs)
		}
	}
}

func TestAddressesAreTakenFromTheFlagFirstAndThenFromTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		env  string
		args []string
		want string // addresses; empty for files
	}{
		{"http://a", nil, "http://a"},
		{"http://a , https://b/,", nil, "http://a https://b/"},
		{"http://a", []string{"--server", "http://c"}, "http://c"},
		{"", []string{"--server=http://c"}, "http://c"},
		{"http://a", []string{"--server", ""}, ""},
		{"http://a", []string{"--server="}, ""},
		{"http://a", []string{"--root", "here"}, ""},
		{"", nil, ""},
	} {
		a := newAtServer(t, "LOKT_SERVER="+c.env)
		code, _, errs := a.lokt(append([]string{"exists", "x"}, c.args...)...)
		var got []string
		if len(a.asked) > 0 {
			got = a.asked[0].URLs
		}
		if code != 3 || strings.Join(got, " ") != c.want {
			t.Errorf("LOKT_SERVER=%s lokt exists x %v: exit %d, asked %v: %s", c.env, c.args, code, got, errs)
		}
	}
}

func TestAPasswordInAnAddressIsNotShown(t *testing.T) {
	a := newAtServer(t, "LOKT_SERVER=http://ann:hush@127.0.0.1:7117")
	a.server.down = lokt.ErrUnavailable
	for _, args := range [][]string{{"status"}, {"doctor"}, {"doctor", "--json"}, {"prime"}, {"why", "x"}, {"why", "x", "--server", "http://ann:hush@far"}, {"lock", "x", "--server", "ftp://ann:hush@far"}} {
		if _, out, errs := a.lokt(args...); strings.Contains(out+errs, "hush") {
			t.Errorf("lokt %v: %s%s", args, out, errs)
		}
	}
}

func TestPrimeNamesTheServerIfThereIsOne(t *testing.T) {
	a := newAtServer(t)
	if _, out, _ := a.lokt("prime"); !strings.Contains(out, "kept by the server `http://127.0.0.1:7117`") {
		t.Errorf("the server is not named: %s", out)
	}
	if _, out, _ := newDesk(t, "ann").lokt("prime"); strings.Contains(strings.ToLower(out), "server") {
		t.Errorf("a server is named: %s", out)
	}
}

// refusing is a service whose renewals fail a few times.
type refusing struct {
	lokt.Service
	fail  []error
	hang  bool // until the context ends
	calls int
}

func (r *refusing) Renew(ctx context.Context, x lokt.Renewal) (lokt.Holder, error) {
	r.calls++
	if r.hang {
		r.hang = false
		<-ctx.Done()
		return lokt.Holder{}, context.Cause(ctx)
	}
	if len(r.fail) > 0 {
		err := r.fail[0]
		r.fail = r.fail[1:]
		return lokt.Holder{}, err
	}
	return lokt.Holder{Token: 7}, nil
}

// Promise S-106.
func TestRenewalsAreRepeatedWhileTheServerIsOutOfReachAndNoLonger(t *testing.T) {
	away := fmt.Errorf("%w: refused", lokt.ErrUnavailable)
	gone := &lokt.GoneError{Name: "x"}
	for what, c := range map[string]struct {
		r     *refusing
		calls int
		told  int
		err   error
	}{
		"at once":         {&refusing{}, 1, 0, nil},
		"in the end":      {&refusing{fail: []error{away, away}}, 3, 2, nil},
		"after a silence": {&refusing{hang: true}, 2, 1, nil},
		"gone":            {&refusing{fail: []error{away, gone}}, 2, 1, gone},
	} {
		told := 0
		s := insistent{Service: c.r, attempt: 20 * time.Millisecond, failed: func(lokt.Renewal, error) { told++ }}
		h, err := s.Renew(context.Background(), lokt.Renewal{Name: "x"})
		if c.r.calls != c.calls || told != c.told || !errors.Is(err, c.err) || err == nil && h.Token != 7 {
			t.Errorf("%s: %d calls, %d told, %v, %v", what, c.r.calls, told, h, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r := &refusing{fail: make([]error, 1000)}
	for i := range r.fail {
		r.fail[i] = away
	}
	s := insistent{Service: r, attempt: 20 * time.Millisecond, failed: func(lokt.Renewal, error) {}}
	if _, err := s.Renew(ctx, lokt.Renewal{Name: "x"}); !errors.Is(err, lokt.ErrUnavailable) || r.calls < 2 {
		t.Errorf("%d calls, %v", r.calls, err)
	}
	for ttl, want := range map[time.Duration]time.Duration{time.Second: 250 * time.Millisecond, 10 * time.Second: time.Second, time.Hour: 3 * time.Second} {
		if got := attemptTime(ttl); got != want {
			t.Errorf("TTL %v: %v, want %v", ttl, got, want)
		}
	}
}
