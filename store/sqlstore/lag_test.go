package sqlstore

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

func TestTheLagOfTheTablesIsWhatTheJournalHas(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "x.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if l := db.Lag(); l != (Lag{}) {
		t.Errorf("at first it is %+v", l)
	}
	for seen := false; !seen; { // the tables may follow before one can look
		begun := time.Now()
		if err := db.Jobs().Update(t.Context(), func(jobs.Facts) jobs.Changes {
			return jobs.Changes{Events: []jobs.Event{{Seq: uint64(begun.UnixNano()), Type: jobs.EventSubmit}}}
		}); err != nil {
			t.Fatal(err)
		}
		l := db.Lag()
		seen = l.Turns == 1 && l.Bytes > 0 && l.Age > 0 && l.Age <= time.Since(begun)
		for end := time.Now().Add(time.Minute); db.Lag() != (Lag{}); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("in the end it is %+v", db.Lag())
			}
		}
	}
}

// Promise S-162.
func TestTheLagInPostgreSQLIsOfAllThatIsKnownOf(t *testing.T) {
	t.Parallel()
	s := &pgTables{behind: make(chan struct{}, 1)}
	lags := func(when string, turns, bytes int, since time.Time) {
		t.Helper()
		l := s.lag()
		if old := time.Since(since); l.Turns != turns || l.Bytes != bytes || (l.Age > 0) != (turns > 0) || turns > 0 && (l.Age > old || l.Age < old-time.Millisecond*500) {
			t.Errorf("%s it is %+v", when, l)
		}
	}
	s.begin(10, nil)
	s.learned(10)
	lags("at first", 0, 0, time.Now())
	first := time.Now()
	s.learned(12) // of others
	time.Sleep(time.Second)
	second := time.Now()
	s.grow(pgTurn{seq: 13, bytes: 100})
	s.learned(13)
	s.learned(13)
	lags("with turns of others and an own one", 3, 100, first)
	s.reached(12)
	lags("with the own one", 1, 100, second)
	s.reached(13)
	lags("when all are in the tables", 0, 0, time.Now())
	s.learned(13)
	lags("when it is looked again", 0, 0, time.Now())
	s.learned(14)
	s.begin(5, nil) // an older state of the database
	lags("when everything is read anew", 0, 0, time.Now())
	again := time.Now()
	s.learned(6)
	lags("after that", 1, 0, again)
	anew := time.Now()
	s.begin(5, []pgTurn{{seq: 6, bytes: 70}, {seq: 7, bytes: 80}})
	s.learned(7)
	lags("when turns are read that are not in the tables", 2, 150, anew)
	s.reached(6)
	lags("when one of them is", 1, 80, anew)
}
