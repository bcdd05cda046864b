package filestore

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lokt-dev/lokt"
)

// List implements lokt.Store.
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
		for _, name := range names {
			snap, err := s.View(ctx, name)
			if ctx.Err() != nil {
				yield(snap, ctx.Err())
				return
			}
			skip := err == nil && (snap.Lock.Free() || f.Queued && len(snap.Lock.Queue) == 0)
			if !skip && !yield(snap, err) {
				return
			}
		}
	}
}

// listed returns the names that have a file, in order.
func (s *Store) listed(f lokt.Filter) ([]string, error) {
	var names []string
	for file, dir := range fileDirs {
		if f.Queued && file != fileQueue {
			continue
		}
		entries, err := s.fs.ReadDir(filepath.Join(s.root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			name, ok := strings.CutSuffix(e.Name(), ext)
			if ok && strings.HasPrefix(name, f.Prefix) && lokt.ValidateName(name) == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
