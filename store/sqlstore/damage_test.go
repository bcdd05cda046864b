package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// warnings are what a database has said.
type warnings struct {
	mu  sync.Mutex
	all []error
}

func (w *warnings) add(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, err)
}

func (w *warnings) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.all)
}

// ledger is what was acknowledged, kept outside of the database.
type ledger struct {
	holders map[string]string // lease by lock; "" for none
	tokens  map[string]uint64 // highest by lock
	states  map[string]jobs.State
	leased  map[string]uint64 // highest token by job
}

func newLedger() *ledger {
	return &ledger{map[string]string{}, map[string]uint64{}, map[string]jobs.State{}, map[string]uint64{}}
}

// keep does n things of each kind, and notes what was acknowledged.
func (l *ledger) keep(t *testing.T, db *fileDB, rng *rand.Rand, n int) {
	t.Helper()
	ctx := t.Context()
	m := lokt.NewManager(db.Locks())
	js, err := manager.Open(ctx, db.Jobs(), manager.Options{Config: jobs.Config{Total: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = js.Close() }()
	for i := range n {
		name := fmt.Sprint("lock-", rng.IntN(20))
		if lease := l.holders[name]; lease != "" {
			if _, err := m.Release(ctx, lokt.Target{Name: name, LeaseID: lease}); err != nil {
				t.Fatal(err)
			}
			l.holders[name] = ""
		} else {
			h, err := m.Acquire(ctx, lokt.Claim{Name: name, Owner: lokt.Owner{ID: "o"}, TTL: time.Hour, Metadata: map[string]string{"k": strings.Repeat("v", rng.IntN(300))}})
			if err != nil || h.Token <= l.tokens[name] {
				t.Fatalf("token %d follows %d, %v", h.Token, l.tokens[name], err)
			}
			l.holders[name], l.tokens[name] = h.LeaseID, h.Token
		}
		spec := jobs.NewSpec()
		spec.Payload = []byte(`{"p":"` + strings.Repeat("p", rng.IntN(2*largePayload)) + `"}`)
		r, err := js.Submit(ctx, []jobs.Spec{spec})
		if err != nil {
			t.Fatal(err)
		}
		l.states[r[0].JobID] = jobs.Queued
		if i%3 == 0 {
			continue
		}
		g, err := js.Request(ctx, jobs.Request{WorkerID: "w"})
		if err != nil || g.Denied != nil {
			t.Fatal(err, g.Denied)
		}
		l.states[g.Job.ID], l.leased[g.Job.ID] = jobs.Leased, g.Lease.Token
		if i%3 == 1 {
			continue
		}
		if _, err := js.Complete(ctx, jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed}); err != nil {
			t.Fatal(err)
		}
		l.states[g.Job.ID] = jobs.Completed
	}
}

// compare returns what differs from what was acknowledged without being said by an error.
func (l *ledger) compare(ctx context.Context, db *fileDB) (silent []string) {
	differs := func(format string, args ...any) { silent = append(silent, fmt.Sprintf(format, args...)) }
	for name, lease := range l.holders {
		s, err := db.Locks().View(ctx, name)
		if err != nil {
			continue
		}
		if has := len(s.Lock.Holders) > 0; has != (lease != "") || has && s.Lock.Holders[0].LeaseID != lease {
			differs("%s is held by %+v, not %q", name, s.Lock.Holders, lease)
		}
	}
	living, err := db.Jobs().Load(ctx)
	if err != nil {
		return silent
	}
	states := map[string]jobs.State{}
	for _, r := range living.Jobs {
		states[r.ID] = r.State
	}
	for id, want := range l.states {
		r, err := db.Jobs().Ended(ctx, id)
		switch {
		case errors.Is(err, jobs.ErrJobNotFound) && states[id] != want:
			differs("%s is %q, not %q", id, states[id], want)
		case err == nil && r.State != want:
			differs("%s is %q, not %q", id, r.State, want)
		}
	}
	return silent
}

// higher checks that tokens go on above all that were given.
func (l *ledger) higher(t *testing.T, what string, db *fileDB) {
	t.Helper()
	ctx := t.Context()
	m := lokt.NewManager(db.Locks())
	for name, last := range l.tokens {
		_, _ = m.Release(ctx, lokt.Target{Name: name, Owner: lokt.Owner{ID: "root"}, Force: true})
		if h, err := m.Acquire(ctx, lokt.Claim{Name: name, Owner: lokt.Owner{ID: "next"}}); err == nil && h.Token <= last {
			t.Errorf("%s: token %d of %s was given before: %d", what, h.Token, name, last)
		}
	}
	living, err := db.Jobs().Load(ctx)
	if err != nil {
		return
	}
	for _, r := range living.Jobs {
		if last := l.leased[r.ID]; max(r.Token, living.TokenFloor) < last {
			t.Errorf("%s: the next token of %s follows %d and %d, and %d was given", what, r.ID, r.Token, living.TokenFloor, last)
		}
	}
}

// harm changes a file at a random place.
func harm(t *testing.T, path string, rng *rand.Rand) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := rng.IntN(len(b))
	spoil := func(n int) {
		for i := at; i < min(at+n, len(b)); i++ {
			b[i] = byte(rng.IntN(256))
		}
	}
	what := ""
	switch rng.IntN(6) {
	case 0:
		what = "a bit"
		b[at] ^= 1 << rng.IntN(8)
	case 1:
		what = "a byte"
		spoil(1)
	case 2:
		what = "a block"
		spoil(64)
	case 3:
		what = "a page"
		at = at / 4096 * 4096
		spoil(4096)
	case 4:
		what = "a page of zeros"
		at = at / 4096 * 4096
		clear(b[at:min(at+4096, len(b))])
	case 5:
		what = "the end"
		b = b[:at]
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s of %s at %d", what, filepath.Base(path), at)
}

// harmsEnv is how many changes are made.
const harmsEnv = "LOKT_SQLSTORE_HARMS"

// Promises S-63, S-156, S-180, S-181.
func TestNoDamageGoesByInSilence(t *testing.T) {
	t.Parallel()
	harms := 60
	if n, err := strconv.Atoi(os.Getenv(harmsEnv)); err == nil {
		harms = n
	}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	path := spot(t)
	dir := filepath.Dir(path)
	counts := map[string]int{}
	for round := range 3 {
		l := newLedger()
		from := filepath.Join(dir, fmt.Sprint("from-", round))
		db := start(t, from, Options{KeepEvents: -1})
		l.keep(t, db, rng, 40)
		if round > 0 { // some is in the database's file, or all
			if err := db.group.perform(t.Context(), &request{name: "x", change: func(s lokt.Snapshot) lokt.Change { db.checkpoint(); return lokt.Change{Lock: s.Lock} }}); err != nil {
				t.Fatal(err)
			}
		}
		if round == 1 {
			l.keep(t, db, rng, 20)
		}
		asKilled(t, from, path)
		shut(t, db)
		for i := range harms / 3 {
			to := filepath.Join(dir, fmt.Sprint("to-", round, "-", i))
			asKilled(t, path, to)
			what := harm(t, to+[]string{"", "-wal"}[rng.IntN(2)], rng)
			counts[l.judge(t, what, to)]++
			for _, suffix := range []string{"", "-wal", "-mark", "-shm"} {
				_ = os.Remove(to + suffix)
			}
		}
	}
	t.Log(counts)
}

// judge opens a database that was damaged, and returns how that ended.
func (l *ledger) judge(t *testing.T, what, path string) string {
	t.Helper()
	w := &warnings{}
	o := Options{KeepEvents: -1, Warn: w.add}
	opened, err := Open(t.Context(), "sqlite:"+path, o)
	how := "opened"
	if err != nil {
		if !errors.Is(err, lokt.ErrDamaged) && !errors.Is(err, lokt.ErrUnavailable) && !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("%s: refused with %v", what, err)
		}
		o.AcceptLoss = true
		if opened, err = Open(t.Context(), "sqlite:"+path, o); err != nil {
			return "refused"
		}
		how = "accepted"
	}
	db := opened.backend.(*fileDB)
	defer func() { _ = db.Close() }()
	if silent := l.compare(t.Context(), db); how == "opened" && len(silent) > 0 {
		how = "told"
		if err := db.check(t.Context()); err == nil && w.said() == "[]" {
			t.Errorf("%s: silent: %v", what, silent)
		}
	}
	l.higher(t, what, db)
	return how
}

// Promise S-180.
func TestALogThatWasTakenAwayIsMissed(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	last := acquire(t, db, claim("x", "a", time.Hour))
	for name, take := range map[string]func(path string) error{
		"log":           func(path string) error { return os.Remove(path + "-wal") },
		"file":          os.Remove,
		"file's bytes":  func(path string) error { return os.Truncate(path, 0) },
		"end of log":    func(path string) error { return os.Truncate(path+"-wal", 32) },
		"header of log": func(path string) error { return os.WriteFile(path+"-wal", make([]byte, 1<<16), 0o600) },
	} {
		to := path + name
		asKilled(t, path, to)
		if err := take(to); err != nil {
			t.Fatal(err)
		}
		for range 2 { // it is left as it is
			if _, err := Open(t.Context(), "sqlite:"+to, Options{}); !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(err.Error(), "--accept-loss") {
				t.Errorf("without its %s: %v", name, err)
			}
		}
		w := &warnings{}
		opened, err := Open(t.Context(), "sqlite:"+to, Options{Warn: w.add, AcceptLoss: true})
		if err != nil {
			t.Errorf("without its %s: %v", name, err)
			continue
		}
		if h := acquire(t, opened.backend.(*fileDB), claim("x", "b", time.Hour)); h.Token <= last.Token || w.said() == "[]" {
			t.Errorf("without its %s: token %d follows %d, and it says %s", name, h.Token, last.Token, w.said())
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Promise S-180. What cannot be judged without its mark says so, and tokens go on as after a loss.
func TestAMarkThatIsMissingIsTold(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	last := acquire(t, db, claim("x", "a", time.Hour)).Token
	for name, take := range map[string]func(mark string) error{
		"missing": os.Remove,
		"empty":   func(mark string) error { return os.Truncate(mark, 0) },
		"damaged": func(mark string) error { return os.WriteFile(mark, make([]byte, 3*markPart), 0o600) },
	} {
		to := path + name
		asKilled(t, path, to)
		if err := errors.Join(take(markPath(to)), os.Remove(to+"-wal")); err != nil {
			t.Fatal(err)
		}
		w := &warnings{}
		opened := start(t, to, Options{Warn: w.add})
		if h := acquire(t, opened, claim("x", "b", time.Hour)); h.Token < last+jumpLoss || !strings.Contains(w.said(), "mark") {
			t.Errorf("%s: token %d follows %d, and it says %s", name, h.Token, last, w.said())
		}
		shut(t, opened)
	}
}

// Promise S-180. A new database is no exception.
func TestADatabaseThatWasJustMadeHasItsMark(t *testing.T) {
	t.Parallel()
	path := spot(t)
	start(t, path, Options{})
	asKilled(t, path, path+".killed")
	w := &warnings{}
	shut(t, start(t, path+".killed", Options{Warn: w.add}))
	if said := w.said(); said != "[]" {
		t.Errorf("it says %s", said)
	}
	if m, err := readMark(path); err != nil || m.Commits == 0 {
		t.Errorf("the mark is %+v, %v", m, err)
	}
}

// Promise S-181.
func TestTokensJumpAfterAnEndThatWasNotClean(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	first := acquire(t, db, claim("x", "a", time.Hour)).Token
	asKilled(t, path, path+".killed")
	shut(t, db)
	for name, jump := range map[string]uint64{path: 0, path + ".killed": jumpUnclean} {
		db := start(t, name, Options{})
		if l := view(t, db, "x").Lock; l.Token != first+jump {
			t.Errorf("%s: token %d follows %d", name, l.Token, first)
		}
		shut(t, db)
	}
}

// Promise S-61. What is behind the log's end costs nothing, however long that is.
func TestALogThatIsMostlyNothingIsOpenedSoon(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	for i := range 300 { // more than are written again at once
		acquire(t, db, claim(fmt.Sprint("x", i), "a", time.Hour))
	}
	to := path + ".long"
	asKilled(t, path, to)
	if err := os.Truncate(to+"-wal", 1<<40); err != nil {
		t.Skip("this system has no files as long: ", err)
	}
	opened := start(t, to, Options{})
	for i := range 300 {
		if v := view(t, opened, fmt.Sprint("x", i)); len(v.Lock.Holders) != 1 {
			t.Fatalf("of x%d there is %+v", i, v)
		}
	}
	shut(t, opened)
}

// Promise S-181.
func TestALogThatEndsEarlySaysSo(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	for i := range 5 {
		acquire(t, db, claim(fmt.Sprint("x", i), "a", time.Hour))
	}
	asKilled(t, path, path+".whole")
	asKilled(t, path, path+".spoilt")
	b, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	end := 32 // of what was written
	for i := end; i+logFrame <= len(b) && slices.ContainsFunc(b[i:i+24], func(b byte) bool { return b != 0 }); i += logFrame {
		end = i + logFrame
	}
	b[end/2] ^= 1
	if err := os.WriteFile(path+".spoilt-wal", b, 0o600); err != nil {
		t.Fatal(err)
	}
	for suffix, early := range map[string]bool{".whole": false, ".spoilt": true} {
		w := &warnings{}
		shut(t, start(t, path+suffix, Options{Warn: w.add, AcceptLoss: true}))
		if said := w.said(); strings.Contains(said, "ended early") != early {
			t.Errorf("with the log %s it says %s", suffix, said)
		}
	}
}

// Promise S-182.
func TestALogThatIsTakenAwayMeanwhileIsNoticed(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	acquire(t, db, claim("x", "a", time.Hour))
	if err := os.Remove(path + "-wal"); err != nil {
		t.Skip("this system does not let an open file be removed: ", err)
	}
	_, err := lokt.NewManager(db.Locks()).Acquire(t.Context(), claim("y", "a", time.Hour))
	for _, err := range []error{err, db.Ping(t.Context())} {
		if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "-wal") {
			t.Errorf("the error is %v", err)
		}
	}
	for _, suffix := range []string{"", "-mark"} {
		b, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(path+".left"+suffix, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if l := view(t, start(t, path+".left", Options{}), "x").Lock; len(l.Holders) != 1 {
		t.Errorf("what was stored before is %+v", l)
	}
}

// Promise S-182. What the log had is gone, so it must not be moved into the file either.
func TestALogThatIsCutOffMeanwhileIsNoticed(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := neverClosed(t, path)
	if out, err := sql.Open("sqlite", dsn(path, "rw")); err != nil {
		t.Fatal(err)
	} else if _, err := out.Exec("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil { // as others may who move the log
		t.Fatal(err)
	} else if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	acquire(t, db, claim("y", "a", time.Hour))
	acquire(t, db, claim("z", "a", time.Hour))
	if err := os.Truncate(path+"-wal", 6000); err != nil {
		t.Skip("this system does not let an open file be cut off: ", err)
	}
	if _, err := lokt.NewManager(db.Locks()).Acquire(t.Context(), claim("w", "a", time.Hour)); !errors.Is(err, errCut) || !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("the error is %v", err)
	}
	<-db.Failed()
}

// Promises S-65 and S-180.
func TestWhatTheLogHasIsMovedSoonAndOldEventsAreForgotten(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{KeepEvents: 2})
	for i := range 5 {
		acquire(t, db, claim(fmt.Sprint("x", i), "a", time.Hour))
	}
	for begun := time.Now(); db.unmoved.Load(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("it is not moved")
		}
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(b), "lease of a") {
		t.Errorf("it is not in the file: %v", err)
	}
	page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
	if err != nil || len(page.Events) != 2 || page.Newest != 5 {
		t.Errorf("events are %+v, %v", page, err)
	}
}

// Promise S-156.
func TestADamagedDocumentIsNamedAndTheRestGoesOn(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	l := newLedger()
	l.keep(t, db, rand.New(rand.NewPCG(1, 2)), 9)
	acquire(t, db, claim("bad", "a", time.Hour))
	acquire(t, db, claim("good", "a", time.Hour))
	shut(t, db)
	var living, ended string
	for id, state := range l.states {
		if state == jobs.Completed {
			ended = id
		} else {
			living = id
		}
	}
	direct(t, path, "UPDATE locks SET doc = replace(doc, 'lease of a', 'lease of b') WHERE name = 'bad'",
		"UPDATE living SET doc = replace(doc, '\"generic\"', '\"special\"') WHERE id = '"+living+"'",
		"UPDATE ended SET payload = '{}' WHERE id = '"+ended+"'",
		"UPDATE lock_events SET doc = '[]' WHERE first = 1")
	w := &warnings{}
	db = start(t, path, Options{Warn: w.add})
	m := lokt.NewManager(db.Locks())
	if _, err := m.Acquire(t.Context(), claim("bad", "b", 0)); !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(err.Error(), "bad") {
		t.Errorf("a claim: %v", err)
	}
	if h := view(t, db, "good").Lock.Holders; len(h) != 1 {
		t.Errorf("another lock is held by %+v", h)
	}
	listed := map[string]error{}
	for s, err := range db.Locks().List(t.Context(), lokt.Filter{Prefix: "bad"}) {
		listed[s.Lock.Name] = err
	}
	if err := listed["bad"]; !errors.Is(err, lokt.ErrDamaged) {
		t.Errorf("listed are %v", listed)
	}
	all, err := db.Jobs().Load(t.Context())
	if err != nil || len(all.Jobs) != len(l.states)-3-1 {
		t.Errorf("%d jobs live, %v", len(all.Jobs), err)
	}
	for _, id := range []string{living, ended} {
		if _, err := db.Jobs().Ended(t.Context(), id); !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(err.Error(), id) {
			t.Errorf("job %s: %v", id, err)
		}
	}
	list, err := db.Jobs().ListEnded(t.Context(), jobs.Filter{}, 0, 1<<62, 100)
	if err != nil || len(list) != 3 {
		t.Errorf("ended are %+v, %v", list, err)
	}
	page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{Limit: 1})
	if err != nil || len(page.Events) != 1 || page.Events[0].Type != "damaged" {
		t.Errorf("events are %+v, %v", page, err)
	}
	for _, err := range []error{db.check(t.Context()), CheckFile(t.Context(), path)} {
		for _, what := range []string{"lock bad", "job " + living, "job " + ended, "from number 1"} {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("the check says nothing of %s: %v", what, err)
			}
		}
	}
	if said := w.said(); !strings.Contains(said, "lock bad") || !strings.Contains(said, living) {
		t.Errorf("it says %s", said)
	}
}

// Promise S-156. What is damaged is told in valid UTF-8, whatever there is: nothing else can be sent.
func TestADamagedNameIsToldInText(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	l := newLedger()
	l.keep(t, db, rand.New(rand.NewPCG(1, 2)), 9)
	acquire(t, db, claim("bad", "a", time.Hour))
	shut(t, db)
	direct(t, path, "UPDATE locks SET name = CAST(x'62FF64' AS TEXT) WHERE name = 'bad'",
		"UPDATE living SET id = CAST(x'FF' AS TEXT) || substr(id, 2)", "UPDATE ended SET id = CAST(x'FF' AS TEXT) || substr(id, 2), state = CAST(x'FF' AS TEXT)")
	w := &warnings{}
	db = start(t, path, Options{Warn: w.add})
	texts := []string{}
	for s, err := range db.Locks().List(t.Context(), lokt.Filter{}) {
		if err != nil {
			texts = append(texts, s.Lock.Name, err.Error())
		}
	}
	if _, err := lokt.NewManager(db.Locks()).Acquire(t.Context(), claim("bad", "b", 0)); !errors.Is(err, lokt.ErrDamaged) {
		t.Errorf("a claim: %v", err)
	} else {
		texts = append(texts, err.Error())
	}
	list, err := db.Jobs().ListEnded(t.Context(), jobs.Filter{}, 0, 1<<62, 100)
	if err != nil || len(list) == 0 {
		t.Fatalf("ended are %+v, %v", list, err)
	}
	for _, j := range list {
		texts = append(texts, j.ID, string(j.State), j.Reason)
	}
	for _, text := range append(texts, CheckFile(t.Context(), path).Error(), w.said()) {
		if !utf8.ValidString(text) {
			t.Errorf("it says %q", text)
		}
	}
	if len(texts) < 5+len(list) {
		t.Errorf("it says %q", texts)
	}
}

// Promise S-156: the name in a row's own column may be what is damaged, and then the lock or job is not another one.
func TestADamagedNameIsNotAFreeLock(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	l := newLedger()
	l.keep(t, db, rand.New(rand.NewPCG(1, 2)), 9)
	acquire(t, db, claim("bad", "a", time.Hour))
	acquire(t, db, claim("good", "a", time.Hour))
	shut(t, db)
	living := ""
	for id, state := range l.states {
		if state == jobs.Queued {
			living = id
		}
	}
	direct(t, path, "UPDATE locks SET name = 'bae' WHERE name = 'bad'", "UPDATE locks SET name = 'gold' WHERE name = 'good'",
		"UPDATE living SET id = 'x' || substr(id, 2) WHERE id = '"+living+"'")
	direct(t, path, "UPDATE locks SET name = 'good' WHERE name = 'gold'") // and this one is what it was
	db = start(t, path, Options{})
	m := lokt.NewManager(db.Locks())
	for _, name := range []string{"bad", "bae"} {
		if _, err := m.Acquire(t.Context(), claim(name, "b", 0)); !errors.Is(err, lokt.ErrDamaged) {
			t.Errorf("a claim to %s: %v", name, err)
		}
	}
	if _, err := m.Acquire(t.Context(), claim("good", "b", 0)); !errors.Is(err, lokt.ErrHeld) {
		t.Errorf("a claim to what is held: %v", err)
	}
	if _, err := db.Jobs().Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Jobs().Ended(t.Context(), living); !errors.Is(err, lokt.ErrDamaged) {
		t.Errorf("job %s: %v", living, err)
	}
}

// Promises S-65 and S-156: events of changes that were committed together are found by the names of their locks, also
// when their row is damaged.
func TestEventsOfOneCommitAreFoundByTheNamesOfTheirLocks(t *testing.T) {
	path := spot(t)
	db := start(t, path, Options{})
	busy, free := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_ = db.group.perform(t.Context(), &request{write: func() error { close(busy); <-free; return nil }})
	})
	<-busy
	for _, name := range []string{"a", "a.b", "b", "b.a"} {
		all.Go(func() {
			err := db.Locks().Update(t.Context(), name, func(s lokt.Snapshot) lokt.Change {
				return lokt.Change{Lock: s.Lock, Events: []lokt.Event{{Type: lokt.EventAcquire, Name: name, Time: s.Now}}}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for waiting := 0; waiting < 4; runtime.Gosched() {
		db.group.mu.Lock()
		waiting = len(db.group.queue)
		db.group.mu.Unlock()
	}
	close(free)
	all.Wait()
	var rows int
	if err := db.read.QueryRow("SELECT count(*) FROM lock_events").Scan(&rows); err != nil || rows != 1 {
		t.Fatalf("there are %d rows, %v", rows, err)
	}
	look := func(when string) {
		t.Helper()
		for want, q := range map[string]lokt.EventQuery{"a": {Name: "a"}, "a.b": {Prefix: "a."}, "b b.a": {Prefix: "b"}, "": {Name: "c"}} {
			page, err := db.Locks().ReadEvents(t.Context(), q)
			var found []string
			for _, e := range page.Events {
				found = append(found, e.Name)
			}
			slices.Sort(found)
			if got := strings.Join(found, " "); err != nil || got != want {
				t.Errorf("%s: %+v finds %q, %v", when, q, got, err)
			}
		}
	}
	look("whole")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	direct(t, path, "UPDATE lock_events SET doc = '[]'")
	db = start(t, path, Options{})
	look("damaged")
}
