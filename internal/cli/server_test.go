package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
)

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
		"the variable":                    {[]string{"LOKT_SERVER_TOKEN=mine", "LOKT_TOKEN=2", "LOKT_TOKEN_FILE=" + file}, "mine"},
		"the file":                        {[]string{"LOKT_TOKEN_FILE=" + file}, "of-the-file"},
		"fencing tokens, outside a guard": {[]string{"LOKT_TOKEN=123"}, ""},
		"fencing tokens":                  {[]string{"LOKT_TOKEN=12,13", "LOKT_HELD=a=x,b=y"}, ""},
		"fencing tokens, and the guard's": {[]string{"LOKT_TOKEN=12,13", "LOKT_HELD=a=x,b=y", "LOKT_SERVER_TOKEN=handed-on"}, "handed-on"},
		"fencing tokens, and the file":    {[]string{"LOKT_TOKEN=12", "LOKT_HELD=a=x", "LOKT_TOKEN_FILE=" + file}, "of-the-file"},
		"another inside of a guard":       {[]string{"LOKT_TOKEN=other", "LOKT_HELD=a=x", "LOKT_SERVER_TOKEN=handed-on"}, "handed-on"},
	} {
		var asked []string
		far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
			w.WriteHeader(http.StatusNotImplemented)
		}))
		d := clitest.New(t, "ann", Commands()).With(append(c.env, "LOKT_SERVER="+far.URL)...)
		if code, _, errs := d.Lokt("exists", "x"); code != 1 || len(asked) != 1 || asked[0] != c.want {
			t.Errorf("%s: exit %d, asked %q, %s", what, code, asked, errs)
		}
		far.Close()
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
		var got []string
		where := app.Command{Name: "where", Build: func(a *app.App) *cobra.Command {
			return &cobra.Command{Use: "where", RunE: func(*cobra.Command, []string) error { got = a.ServerURLs(); return nil }}
		}}
		code, _, errs := clitest.New(t, "ann", []app.Command{where}).With("LOKT_SERVER=" + c.env).Lokt(append([]string{"where"}, c.args...)...)
		if code != 0 || strings.Join(got, " ") != c.want {
			t.Errorf("LOKT_SERVER=%s lokt where %v: exit %d, %v: %s", c.env, c.args, code, got, errs)
		}
	}
}

func TestAPasswordInAnAddressIsNotShown(t *testing.T) {
	for _, args := range [][]string{{"status"}, {"doctor"}, {"doctor", "--json"}, {"prime"}, {"why", "x"}, {"why", "x", "--server", "http://ann:hush@127.0.0.1:2"}, {"lock", "x", "--server", "ftp://ann:hush@far"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel() // each tries for a while
			d := clitest.New(t, "ann", Commands()).With("LOKT_SERVER=http://ann:hush@127.0.0.1:1")
			if _, out, errs := d.Lokt(args...); strings.Contains(out+errs, "hush") {
				t.Errorf("%s%s", out, errs)
			}
		})
	}
}
