package sqlstore

import (
	"database/sql"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// state is what a database of SQLite says about itself: the document of its table "state", written with every transaction.
type state struct {
	Database string    `json:"database"` // tells it from others
	Commits  uint64    `json:"commits"`  // transactions so far
	Clock    time.Time `json:"clock"`    // at the last one
	Backup   bool      `json:"backup,omitzero"`

	Token    uint64 `json:"token"`    // highest that was ever given, of locks and jobs
	Revision uint64 `json:"revision"` // highest of any lock

	floors

	LockEvent uint64        `json:"lock_event"` // number of the last
	Counters  jobs.Counters `json:"counters"`
	Frozen    []string      `json:"frozen"`
}

// floors are what no lock's token and revision, and no job's token, is below.
type floors struct {
	TokenFloor    uint64 `json:"token_floor,omitzero"`
	RevisionFloor uint64 `json:"revision_floor,omitzero"`
}

// raise raises the floors beyond anything that was given.
func (s *state) raise(jump uint64) {
	s.TokenFloor = max(s.TokenFloor, s.Token) + jump
	s.RevisionFloor = max(s.RevisionFloor, s.Revision) + jump
	s.Token, s.Revision = s.TokenFloor, s.RevisionFloor
}

// By how much the floors are raised: after a start that was not clean, when only changes may be missing that were not flushed or
// not acknowledged; and if it is not known how much is missing.
const (
	jumpUnclean = 1 << 20
	jumpLoss    = 1 << 32
)

const stateKey = "state"

func readState(query func(statement string, args []any, scan func(*sql.Rows) error) error) (s state, err error) {
	var d document
	found := false
	if err := query("SELECT doc, sum FROM state", nil, func(rows *sql.Rows) error {
		found = true
		return rows.Scan(&d.text, &d.sum)
	}); err != nil {
		return s, err
	}
	if !found {
		return s, fmt.Errorf("%w: the database does not say what it is", lokt.ErrDamaged)
	}
	return s, d.open("what the database says about itself", stateKey, &s)
}

func (s *state) write(w *writer) error {
	d, err := seal(stateKey, s)
	if err != nil {
		return err
	}
	return w.exec("INSERT INTO state (id, doc, sum) VALUES (1, ?, ?) ON CONFLICT (id) DO UPDATE SET doc = excluded.doc, sum = excluded.sum", d.text, d.sum)
}
