package filestore

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/lokt-dev/lokt/lockfile"
)

// queueCache keeps the queue that was read or written last: those who wait look at the same one again and again.
type queueCache struct{ last atomic.Pointer[seenQueue] }

type seenQueue struct {
	name string
	data []byte
	q    *lockfile.Queue
}

func (c *queueCache) decode(name string, data []byte) (*lockfile.Queue, error) {
	if seen := c.last.Load(); seen != nil && seen.name == name && bytes.Equal(seen.data, data) {
		return seen.q, nil
	}
	q, err := lockfile.DecodeQueue(name, data)
	if err == nil {
		c.last.Store(&seenQueue{name, data, q})
	}
	return q, err
}

// recordCache keeps the records that this process wrote last, of locks with one holder: whoever renews a lock reads what
// it wrote itself. The records are not changed any more.
type recordCache struct {
	mu   sync.Mutex
	seen map[string]seenRecord // by name
}

type seenRecord struct {
	data []byte
	r    *lockfile.Record
}

// maxRecords is how many records are kept at most.
const maxRecords = 256

func (c *recordCache) decode(name string, data []byte) (*lockfile.Record, error) {
	c.mu.Lock()
	seen := c.seen[name]
	c.mu.Unlock()
	if seen.r != nil && bytes.Equal(seen.data, data) {
		return seen.r, nil
	}
	return lockfile.Decode(name, data)
}

// put takes in what was encoded as data.
func (c *recordCache) put(name string, data []byte, r *lockfile.Record) {
	if len(r.Holders) > 0 || r.LockID == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]seenRecord{}
	}
	if _, there := c.seen[name]; !there && len(c.seen) >= maxRecords {
		for any := range c.seen {
			delete(c.seen, any)
			break
		}
	}
	c.seen[name] = seenRecord{data, r}
}

// drop forgets the record of a lock that has none any more.
func (c *recordCache) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, name)
}
