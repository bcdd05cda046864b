package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/worker"
)

func TestOutputIsPassedOnByWholeLines(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, c := range []struct {
		writes, want []string
	}{
		{[]string{"a\nb\n"}, []string{"a\n", "b\n"}},
		{[]string{"a", "b", "\nc", "\n", "\n"}, []string{"ab\n", "c\n", "\n"}},
		{[]string{"a\nb"}, []string{"a\n", "b\n"}},
		{[]string{long, "yy", "z\n"}, []string{long + "yy", "z\n"}},
		{[]string{"", ""}, nil},
	} {
		var got []string
		w := &lineWriter{line: func(l []byte) { got = append(got, string(l)) }}
		for _, s := range c.writes {
			if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		}
		w.end()
		if !slices.Equal(got, c.want) {
			t.Errorf("of %.40q came %.40q", c.writes, got)
		}
	}
}

func TestWhatIsWrongIsSaidInTermsOfFlags(t *testing.T) {
	s := jobs.NewSpec()
	s.Units, s.Locks, s.Extra = 0, []string{"db"}, &jobs.Extra{Limits: map[string]jobs.Limit{"db": {Slots: -1}}}
	invalid := new(jobs.InvalidError)
	if err := jobs.ValidateSubmit([]jobs.Spec{s}, 1); !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	const want = "--units: input should be greater than or equal to 1; --limit db slots: input should be greater than or equal to 0"
	if got := problemsText(invalid.Problems); got != want {
		t.Errorf("it says %q", got)
	}
}

func TestAWorkerThatNoJobIsForIsRefused(t *testing.T) { // as of a variable that is not set
	good := workerOptions{WorkerOptions: worker.WorkerOptions{Concurrency: 1, Types: []string{"a", "b c"}, Capabilities: []string{"gpu"}}}
	if err := good.check(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for says, o := range map[string]workerOptions{
		"--type is empty":       {WorkerOptions: worker.WorkerOptions{Concurrency: 1, Types: []string{"a", ""}}},
		"--capability is empty": {WorkerOptions: worker.WorkerOptions{Concurrency: 1, Capabilities: []string{""}}},
	} {
		err := o.check()
		if _, code, _ := app.Classify(err); code != app.ExitUsage || !strings.Contains(err.Error(), says) {
			t.Errorf("exit code %d, not because %s: %v", code, says, err)
		}
	}
}

func TestTheEndOfAnOutputIsKept(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{nil, ""},
		{[]string{"a\n", "b\r\n"}, "a\nb"},
		{[]string{"é" + strings.Repeat("a", tailBytes-1) + "\n"}, strings.Repeat("a", tailBytes-1)},
		{[]string{"bad \xff\n"}, "bad \uFFFD"},
		{[]string{strings.Repeat("a", 2*tailBytes) + "\n"}, strings.Repeat("a", tailBytes)},
		{[]string{"first\n", strings.Repeat("a", tailBytes) + "\n"}, strings.Repeat("a", tailBytes)},
	} {
		var kept tail
		for _, l := range c.lines {
			kept.add([]byte(l))
		}
		if got := kept.String(); got != c.want {
			t.Errorf("of %.40q is kept %.40q", c.lines, got)
		}
	}
	var kept tail
	for i := range 100 {
		kept.add(fmt.Appendf(nil, "%d\n", i))
	}
	if got := strings.Split(kept.String(), "\n"); len(got) != tailLines || got[0] != "80" || got[tailLines-1] != "99" {
		t.Errorf("kept is %q", got)
	}
}

func TestProgressIsANumber(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "1": 1, "0.25": 0.25, "50%": 0.5, "100%": 1} {
		if got, err := fraction(text); err != nil || got != want {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "%", "-0.1", "1.1", "101%", "NaN", "half", "Inf"} {
		if got, err := fraction(text); err == nil {
			t.Errorf("%s is %v", text, got)
		}
	}
}

func TestWhatIsNoJSONIsAString(t *testing.T) {
	for text, want := range map[string]string{`{"a": 1}`: `{"a": 1}`, "12": "12", "done": `"done"`, `a "b"`: `"a \"b\""`, "": `""`, "{": `"{"`} {
		if got := string(value(text)); got != want {
			t.Errorf("%s is %s, not %s", text, got, want)
		}
	}
}

func TestTheLeashIsAsLongAsTheWorkerTells(t *testing.T) {
	var pipe bytes.Buffer
	to := json.NewEncoder(&pipe)
	first := news(time.Hour)
	first.Payload, first.Grace = []byte("payload"), 1500
	if err := errors.Join(to.Encode(first), to.Encode(news(2*time.Hour))); err != nil {
		t.Fatal(err)
	}
	in := json.NewDecoder(&pipe)
	var got orders
	if err := in.Decode(&got); err != nil || string(got.Payload) != "payload" || got.Grace != 1500 {
		t.Fatalf("read were %+v, %v", got, err)
	}
	l := newLeash(got)
	about := func(want time.Duration) {
		t.Helper()
		if left := l.Remaining(); left > want || left < want-time.Minute {
			t.Errorf("%v remain, not %v", left, want)
		}
	}
	about(time.Hour)
	l.follow(in) // to the end, which is the worker's
	about(2 * time.Hour)
	select {
	case <-l.Done():
	default:
		t.Error("the worker is gone, and the leash is not")
	}
	stop := newLeash(news(time.Hour))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close() // not before the leash has ended
	if _, err := w.WriteString("{}\n"); err != nil {
		t.Fatal(err)
	}
	stop.follow(json.NewDecoder(r))
	<-stop.Done()
}

func TestProblemsAreToldInTermsOfTheCommandLine(t *testing.T) {
	s := jobs.NewSpec()
	s.Units, s.MaxRuntime, s.Priority, s.Locks = 0, -1, "urgent", []string{"a b"}
	err := (cmd{&app.App{}}).jobsError(jobs.ValidateSubmit([]jobs.Spec{jobs.NewSpec(), s}, 10))
	for _, want := range []string{"--units: input should be", "--max-runtime", "--priority", "--lock"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing: %v", want, err)
		}
	}
	if _, code, _ := app.Classify(err); code != app.ExitUsage {
		t.Errorf("exit code %d", code)
	}
	for err, want := range map[error]int{jobs.ErrJobNotFound: app.ExitNotFound, jobs.ErrConflict: app.ExitError, lokt.ErrUnavailable: app.ExitError} {
		if _, code, _ := app.Classify((cmd{&app.App{}}).jobsError(about("x", err))); code != want {
			t.Errorf("%v: exit code %d, not %d", err, code, want)
		}
	}
}

func TestTimesToRunAtAreAbsoluteOrRelative(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"90m": now.Add(90 * time.Minute), "+10s": now.Add(10 * time.Second), "2030-02-01T00:00:00Z": time.Date(2030, 2, 1, 0, 0, 0, 0, time.UTC),
		"2030-02-01T01:00:00+01:00": time.Date(2030, 2, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got, err := runAt(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"soon", "2030-02-01", "12:00"} {
		if got, err := runAt(text, now); err == nil {
			t.Errorf("%s is %v", text, got)
		}
	}
}
