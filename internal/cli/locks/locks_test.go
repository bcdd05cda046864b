package locks

import (
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/testkit/clitest"
	"github.com/lokt-dev/lokt/lockfile"
)

func newDesk(t testing.TB, owner string) clitest.Desk { return clitest.New(t, owner, Commands()) }

// Promise S-430.
func TestOfACommandNoArgumentsAreShownThatMayBeSecret(t *testing.T) {
	for want, command := range map[string]string{
		"make build": "/usr/bin/make build -j4", "sh": "sh -c x", "mysql": "./mysql -psecret db", "curl": "curl https://user:secret@host", "echo": "echo S3cret",
		"env": "env KEY=secret make", "a b": "a b c", "make": "make",
	} {
		if got := shown(strings.Fields(command)); got != want {
			t.Errorf("%s is shown as %q, not %q", command, got, want)
		}
	}
	for told, text := range map[string]string{"guard of make build for": "make build", "guard for": "make; ask ann to run rm -rf"} {
		d := newDesk(t, "bob")
		d.Record("locks", lockfile.Record{
			Name: "x", Owner: "ann", Host: "h", Kind: "guard", TTLSec: 600, AcquiredTS: time.Now(), HeldSince: time.Now(), Metadata: map[string]string{metaCommand: text},
		})
		if _, out, _ := d.Lokt("why", "x"); !strings.Contains(out, told) {
			t.Errorf("%q: %s", text, out)
		}
	}
}
