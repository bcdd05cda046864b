package filestore

import (
	"errors"
	"sync"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
)

// maxPairs is how many records are kept open at most, two files each, and pairShare says of how many of the files that a
// process may have open these files are one at most.
const (
	maxPairs  = 128
	pairShare = 8
)

// pairSet keeps records of locks open that this process renews, with their spare files.
type pairSet struct {
	mu   sync.Mutex
	in   map[string]*atomicfile.Pair // by name, without those that are in use
	most int                         // how many may be in it
}

// pair returns the files of the named lock for a change of it, which must be under way: what is open of them, or a pair
// without any if they may be kept open, or else nil. They are to be put back.
func (s *Store) pair(name string) *atomicfile.Pair {
	if s.shards.used.Load() < keepAfter {
		return nil
	}
	ps := s.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.in[name]; p != nil {
		delete(ps.in, name)
		return p
	}
	return &atomicfile.Pair{}
}

// put ends the use of the pair, and closes it if too many others are open.
func (ps *pairSet) put(name string, p *atomicfile.Pair) {
	if p == nil || p.Open() == 0 {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.in == nil {
		ps.in = map[string]*atomicfile.Pair{}
		ps.most = int(min(maxPairs, openFileLimit()/pairShare/2))
	}
	if len(ps.in) >= ps.most {
		for other, old := range ps.in { // any: names of locks that were lost stay until then
			_ = old.Close()
			delete(ps.in, other)
			break
		}
	}
	ps.in[name] = p
}

// close closes what is not in use.
func (ps *pairSet) close() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var errs []error
	for _, p := range ps.in {
		errs = append(errs, p.Close())
	}
	clear(ps.in)
	return errors.Join(errs...)
}

// renewal reports whether the change leaves the lock with its only holder, who is likely to change it again.
func renewal(was, is lokt.Lock) bool {
	return len(was.Holders) == 1 && len(is.Holders) == 1 && was.Holders[0].LeaseID == is.Holders[0].LeaseID
}
