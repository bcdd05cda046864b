package sqlstore

import (
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// state is what a database of SQLite says about itself: one document, written with every transaction.
type state struct {
	Database string    `json:"database"` // tells it from others
	Commits  uint64    `json:"commits"`  // transactions so far
	Clock    time.Time `json:"clock"`    // at the last one
	Backup   bool      `json:"backup,omitzero"`
	highest

	JobFloor  uint64        `json:"job_floor,omitzero"` // below every token of a job from now on
	LockEvent uint64        `json:"lock_event"`         // number of the last
	Counters  jobs.Counters `json:"counters"`
	Frozen    []string      `json:"frozen"`
}

// highest are the highest numbers there ever were.
type highest struct {
	Token    uint64 `json:"token"` // of locks
	Revision uint64 `json:"revision"`
	JobToken uint64 `json:"job_token"`
}

// By how much tokens and revisions jump: after a start that was not clean, when only changes may be missing that were
// not flushed or not acknowledged; and if it is not known how much is missing.
const (
	jumpUnclean = 1 << 20
	jumpLoss    = 1 << 32
)

// raise raises what will be given beyond anything that was, by what is known here and elsewhere.
func (s *state) raise(other highest, jump uint64) {
	s.Token = max(s.Token, other.Token) + jump
	s.Revision = max(s.Revision, other.Revision) + jump
	s.JobToken = max(s.JobToken, other.JobToken) + jump
	s.JobFloor = s.JobToken
}

const stateKey = "state"

func readState(read look) (s state, err error) {
	err = fmt.Errorf("%w: the database does not say what it is", lokt.ErrDamaged)
	if e := read("SELECT doc, sum FROM state", nil, func(from row) error {
		var d document
		if e := from.Scan(&d.text, &d.sum); e != nil {
			return e
		}
		err = d.open("what the database says about itself", stateKey, &s)
		return nil
	}); e != nil {
		err = e
	}
	return s, err
}

func (s *state) write(w *writer) {
	w.document(table{name: "state", columns: "id, doc, sum"}, stateKey, s, 1)
}
