package auth_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/auth"
)

func FuzzTokenFile(f *testing.F) {
	_, hash := auth.NewToken()
	good := `{"name":"a","sha256":"` + hash + `","scopes":["read"],"expires":"2030-01-01T00:00:00Z"}`
	for _, text := range []string{"", "#\n", good, good + "\n#" + good, `{"name":"b","certificate":true,"scopes":["admin"]}`} {
		f.Add(text)
	}
	path := filepath.Join(f.TempDir(), "tokens")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := auth.ReadFile(path, time.Unix(1_700_000_000, 0))
		if err != nil {
			return
		}
		for _, e := range all {
			if auth.ValidateName(e.Name) != nil || len(e.Scopes) == 0 || e.Cert == (e.SHA256 != "") {
				t.Errorf("%q is accepted as %+v", text, e)
			}
		}
		if err := auth.Append(path, auth.Entry{Name: "last", SHA256: hash, Scopes: httpapi.Scopes()}); err != nil {
			t.Fatal(err)
		}
		if again, err := auth.ReadFile(path, time.Unix(1_700_000_000, 0)); err != nil || len(again) != len(all)+1 {
			t.Errorf("after one more line %q has %d entries instead of %d, %v", text, len(again), len(all)+1, err)
		}
	})
}

func FuzzOurs(f *testing.F) {
	for _, host := range []string{"localhost:1", "[::1]:1", "a.example", "evil.example", "127.0.0.1.evil.example"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		lower := strings.ToLower(host)
		if auth.Ours(r, []string{"127.0.0.1", "a.example"}) && host != "" && !strings.Contains(lower, "localhost") &&
			!strings.Contains(lower, "127.") && !strings.Contains(lower, "::") && !strings.Contains(lower, "a.example") {
			t.Errorf("%q is taken for this daemon", host)
		}
	})
}
