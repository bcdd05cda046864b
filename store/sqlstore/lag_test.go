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
