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

// listChunk is how many locks a list reads at once, and how many it may be ahead of who ranges over it, per reader.
const listChunk = 64

// seenLock is one lock of a list, as its files showed it.
type seenLock struct {
	snap lokt.Snapshot
	err  error
}

// List implements lokt.Store. Long lists are read by several goroutines, ahead of who ranges over them.
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
		for seen := range s.read(ctx, names) {
			if ctx.Err() != nil {
				yield(seen.snap, ctx.Err())
				return
			}
			if seen.err == nil && (seen.snap.Lock.Free() || f.Queued && len(seen.snap.Lock.Queue) == 0) {
				continue
			}
			if !yield(seen.snap, seen.err) {
				return
			}
		}
	}
}

// read returns what the files of the names show, in order.
//
// If only some of a lock's files were there when the directories were listed, no others are looked for: had a waiter or a
// freeze come since, the list would merely be a moment older.
func (s *Store) read(ctx context.Context, names []listedName) iter.Seq[seenLock] {
	return func(yield func(seenLock) bool) {
		r := &reader{s: s}
		defer r.close()
		look := func(n listedName) (seen seenLock) {
			seen.snap, seen.err = r.view(ctx, n.name, n.files)
			return seen
		}
		chunks := slices.Collect(slices.Chunk(names, listChunk))
		readers := min(runtime.GOMAXPROCS(0), len(chunks), 8)
		if readers < 2 {
			for _, n := range names {
				if !yield(look(n)) {
					return
				}
			}
			return
		}
		next := make(chan int)                       // the chunk to read
		done := make([]chan []seenLock, len(chunks)) // what it showed
		ahead := make(chan struct{}, 2*readers)      // bounds what is read but not yet ranged over
		left := make(chan struct{})                  // closed when nobody wants to know any more
		for i := range done {
			done[i] = make(chan []seenLock, 1)
		}
		var working sync.WaitGroup
		defer working.Wait()
		defer close(left)
		working.Go(func() {
			defer close(next)
			for i := range chunks {
				select {
				case ahead <- struct{}{}:
				case <-left:
					return
				}
				select {
				case next <- i:
				case <-left:
					return
				}
			}
		})
		for range readers {
			working.Go(func() {
				for i := range next {
					seen := make([]seenLock, len(chunks[i]))
					for j, n := range chunks[i] {
						seen[j] = look(n)
					}
					done[i] <- seen
				}
			})
		}
		for i := range chunks {
			seen := <-done[i]
			<-ahead
			for _, one := range seen {
				if !yield(one) {
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

// names returns the names that have a file, in order.
func (s *Store) names(f lokt.Filter) ([]string, error) {
	listed, err := s.listed(f)
	names := make([]string, len(listed))
	for i, n := range listed {
		names[i] = n.name
	}
	return names, err
}
