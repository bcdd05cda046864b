package sqlstore

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// Who waits for a connection waits for pgExchange: the last server of a URL must have its turn within that.
func TestAServerThatIsDeadWithoutAWordLeavesTimeForTheOthers(t *testing.T) {
	t.Parallel()
	for url, servers := range map[string]int{
		"postgres://lokt@a.example/lokt":                           1,
		"postgres://lokt@a.example,b.example/lokt?sslmode=disable": 2,
		"postgres://lokt@a.example,b.example/lokt?sslmode=prefer":  2, // with TLS, and without
		"postgres://lokt@a.example:1,a.example:2,b.example:1/lokt": 3,
	} {
		c, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		if n := countServers(c); n != servers {
			t.Errorf("%s names %d servers, not %d", url, n, servers)
		}
	}
}
