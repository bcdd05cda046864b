package filestore

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/lokt-dev/lokt"
)

// seenLock is one lock of a list, as its files showed it.
type seenLock struct {
	snap lokt.Snapshot
	err  error
}

// listShare is how many locks of a list one reader reads before it waits for the others.
const listShare = 64

// List implements lokt.Store. Several goroutines read, some locks at a time.
//
// If only some of a lock's files were there when the directories were listed, no others are looked for: had a waiter or
// a freeze come since, the list would merely be a moment older.
func (s *Store) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		names, err := s.listed(f)
		if s.closed.Load() {
			err = errClosed
		}
		if err != nil {
			yield(lokt.Snapshot{}, unavailable(err))
			return
		}
		readers := make([]reader, min(runtime.GOMAXPROCS(0), len(names)/listShare+1, 8))
		for i := range readers {
			readers[i].s = s
			defer readers[i].close()
		}
		for some := range slices.Chunk(names, listShare*len(readers)) {
			seen := make([]seenLock, len(some))
			var reading sync.WaitGroup
			for i := range readers {
				reading.Go(func() {
					for j := i; j < len(some); j += len(readers) {
						seen[j].snap, seen[j].err = readers[i].view(ctx, some[j].name, some[j].files)
					}
				})
			}
			reading.Wait()
			for _, one := range seen {
				if ctx.Err() != nil {
					yield(one.snap, ctx.Err())
					return
				}
				skip := one.err == nil && (one.snap.Lock.Free() || f.Queued && len(one.snap.Lock.Queue) == 0)
				if !skip && !yield(one.snap, one.err) {
					return
				}
			}
		}
	}
}

// listedName is a lock's name and which of its files were in the directories.
type listedName struct {
	name  string
	files fileSet
}

// fileSet is a set of a lock's files.
type fileSet uint8

const allFiles fileSet = 1<<files - 1

func only(file int) fileSet { return 1 << file }

func (s fileSet) has(file int) bool { return s&only(file) != 0 }

// listed returns the names that have a file, in order.
func (s *Store) listed(f lokt.Filter) ([]listedName, error) {
	var names []listedName
	for file, dir := range fileDirs {
		if f.Queued && file != fileQueue {
			continue
		}
		entries, err := s.fs.ReadDir(filepath.Join(s.root, dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		names = slices.Grow(names, len(entries))
		for _, e := range entries {
			name, ok := strings.CutSuffix(e.Name(), ext)
			if ok && strings.HasPrefix(name, f.Prefix) && lokt.ValidateName(name) == nil {
				set := only(file)
				if f.Queued {
					set = allFiles
				}
				names = append(names, listedName{name, set})
			}
		}
	}
	slices.SortFunc(names, func(a, b listedName) int { return strings.Compare(a.name, b.name) })
	merged := names[:0]
	for _, n := range names {
		if last := len(merged) - 1; last >= 0 && merged[last].name == n.name {
			merged[last].files |= n.files
			continue
		}
		merged = append(merged, n)
	}
	return merged, nil
}
