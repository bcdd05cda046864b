package care

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

func TestMetricsPassThePrometheusLinter(t *testing.T) {
	d := newDesk(t, "zoe")
	d.Must("lock", "build")
	d.Must("freeze", "deploy", "--ttl", "1h")
	for _, args := range [][]string{{"metrics"}, {"metrics", "--max-names", "1"}} {
		out := d.Must(args...)
		problems, err := promlint.New(bytes.NewReader([]byte(out))).Lint()
		if err != nil || len(problems) != 0 {
			t.Errorf("%v: %v, error %v, in\n%s", args, problems, err, out)
		}
	}
}

func TestMetricsIntoADirectoryAreRefused(t *testing.T) {
	d := newDesk(t, "zoe")
	code, out, errs := d.Lokt("metrics", "--output", ".")
	if code != app.ExitUsage || out != "" || !strings.Contains(errs, "is a directory: name a file") {
		t.Errorf("exit %d: %q %q", code, out, errs)
	}
}

func TestMetricsOfAStoreThatCannotBeListedFailAndLeaveTheFile(t *testing.T) {
	d := newDesk(t, "zoe")
	d.Must("lock", "build")
	d.Must("metrics", "--output", "lokt.prom")
	before, err := os.ReadFile(filepath.Join(d.Dir, "lokt.prom"))
	if err != nil {
		t.Fatal(err)
	}
	locks := filepath.Join(d.Dir, "root", "locks")
	if err := os.Rename(locks, locks+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(locks, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := d.Lokt("metrics", "--output", "lokt.prom"); code != app.ExitError || out != "" || errs == "" {
		t.Errorf("exit %d: %q %q", code, out, errs)
	}
	after, err := os.ReadFile(filepath.Join(d.Dir, "lokt.prom"))
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed (error %v) to %s", err, after)
	}
}

func BenchmarkMetricsOfALongLog(b *testing.B) {
	d := newDesk(b, "zoe")
	d.Must("lock", "build")
	var log bytes.Buffer
	for i := range 50_000 { // about 10 MiB
		fmt.Fprintf(&log, `{"ts":"2026-01-01T00:00:00.123456789Z","event":"renew","name":"build-%d","lock_id":"0123456789abcdef0123456789abcdef",`+
			`"owner":"zoe","host":"h.example","pid":%d,"ttl_sec":300,"extra":{"token":1852673427797059}}`+"\n", i%10, i)
	}
	if err := os.WriteFile(filepath.Join(d.Dir, "root", "audit.log.1"), log.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		d.Must("metrics")
	}
}
