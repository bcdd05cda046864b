package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt"
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
		a := clitest.NewAtServer(t, Commands(), c.env...)
		if code, _, errs := a.Lokt("exists", "x"); code != 3 || len(a.Asked) != 1 || a.Asked[0].Token != c.want {
			t.Errorf("%s: exit %d, asked %+v, %s", what, code, a.Asked, errs)
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
		a := clitest.NewAtServer(t, Commands(), "LOKT_SERVER="+c.env)
		code, _, errs := a.Lokt(append([]string{"exists", "x"}, c.args...)...)
		var got []string
		if len(a.Asked) > 0 {
			got = a.Asked[0].URLs
		}
		if code != 3 || strings.Join(got, " ") != c.want {
			t.Errorf("LOKT_SERVER=%s lokt exists x %v: exit %d, asked %v: %s", c.env, c.args, code, got, errs)
		}
	}
}

func TestAPasswordInAnAddressIsNotShown(t *testing.T) {
	a := clitest.NewAtServer(t, Commands(), "LOKT_SERVER=http://ann:hush@127.0.0.1:7117")
	a.Server.Down = lokt.ErrUnavailable
	for _, args := range [][]string{{"status"}, {"doctor"}, {"doctor", "--json"}, {"prime"}, {"why", "x"}, {"why", "x", "--server", "http://ann:hush@far"}, {"lock", "x", "--server", "ftp://ann:hush@far"}} {
		if _, out, errs := a.Lokt(args...); strings.Contains(out+errs, "hush") {
			t.Errorf("lokt %v: %s%s", args, out, errs)
		}
	}
}
