package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// GarbageError reports a line that is not an entry: the half of one that a crashed writer left, or what does not belong
// in the log at all.
type GarbageError struct {
	File   string // path at the time
	Offset int64  // of the line's first byte
	Size   int64  // bytes, without the line's end
}

func (e *GarbageError) Error() string {
	return fmt.Sprintf("%s: %d bytes at offset %d are not an audit entry", e.File, e.Size, e.Offset)
}

// Bounds on reading.
const (
	maxRead  = 64 << 20               // bytes of one file, unless fewer are asked for: logs are rotated long before
	patience = 200 * time.Millisecond // for a rotation to end before the files are looked for
)

// reader reads all files of a log as one.
type reader struct {
	log     *Log
	query   Query
	sources []*source         // oldest first
	told    map[string]string // by path: what is wrong with the file, told already
}

func (r *reader) close() {
	for _, s := range r.sources {
		s.f.Close()
	}
	r.sources = nil
}

// look finds the log's files and how far each can be read now. It returns what is wrong with those that cannot be, each
// thing once. Nothing is rotated meanwhile, so that the files stand in their order.
//
// Sizes are taken from the newest file to the oldest and used from the oldest to the newest. So if an entry in a newer
// file is seen, those that were appended before it are too, even by a writer that was slow to write to a file just
// rotated.
func (r *reader) look(ctx context.Context) []error {
	wrong := map[string]error{}
	var found []*source // newest first
	still := r.log.still(ctx)
	for i := range r.log.keep + 1 {
		path := r.log.path(i)
		s, err := r.source(path, found)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			wrong[path] = err
		case !slices.Contains(found, s): // or it was met by another name
			s.path = path
			found = append(found, s)
		}
	}
	still()
	r.sources = slices.DeleteFunc(r.sources, func(s *source) bool { return slices.Contains(found, s) })
	for _, s := range r.sources {
		s.gone = true // deleted by a rotation: older than all others
	}
	slices.Reverse(found)
	r.sources = append(r.sources, found...)
	for _, s := range slices.Backward(r.sources) {
		if s.measure(); s.end-s.off > r.log.most {
			wrong[s.path] = fmt.Errorf("%s has %d bytes: only the last %d are read", s.path, s.end, r.log.most)
			s.off = s.end - r.log.most
		}
	}
	var failed []error
	told := make(map[string]string, len(wrong))
	for _, path := range slices.Sorted(maps.Keys(wrong)) {
		if told[path] = wrong[path].Error(); told[path] != r.told[path] {
			failed = append(failed, wrong[path])
		}
	}
	r.told = told
	return failed
}

// still keeps others from rotating until the returned function is called. It does not wait long for one who does, and
// does without where there is nothing to lock: then nothing was rotated yet.
func (l *Log) still(ctx context.Context) (done func()) {
	f, _, err := openRegular(filepath.Join(l.dir, lockName), os.O_RDONLY)
	if err != nil {
		return func() {}
	}
	for begun := time.Now(); time.Since(begun) < patience && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if locked, err := tryLock(f, false); locked || err != nil {
			break
		}
	}
	return func() { f.Close() }
}

// source returns the source for the file at the path: one that is known or was just found, or a new one.
func (r *reader) source(path string, found []*source) (*source, error) {
	f, fi, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Concat(r.sources, found) {
		if os.SameFile(s.fi, fi) {
			f.Close()
			return s, nil
		}
	}
	return &source{f: f, fi: fi}, nil
}

// source is a file of the log and how much of it has been read. It stays open, so that rotation can neither take it
// away nor let another file be mistaken for it.
type source struct {
	f    *os.File
	fi   fs.FileInfo // for its identity only
	path string
	gone bool  // it is no part of the log any more, and nothing is added to it
	off  int64 // of the next line
	end  int64 // up to which it can be read now
}

// measure takes the size up to which the file can be read now. A file that has become shorter is read from its
// beginning.
func (s *source) measure() {
	s.end = s.off
	if fi, err := s.f.Stat(); err == nil {
		s.end = fi.Size()
	}
	if s.end < s.off {
		s.off = 0
	}
}

// read calls each for every line that ends before s.end, and for what is left at the end if that is final, until it
// returns false.
func (s *source) read(ctx context.Context, final bool, each func(off int64, line []byte) bool) error {
	in := bufio.NewReaderSize(io.NewSectionReader(s.f, s.off, s.end-s.off), 64<<10)
	for ctx.Err() == nil {
		line, err := in.ReadBytes('\n')
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			s.off = s.end // so that the error is told once
			return err
		case err != nil && (!final || len(line) == 0):
			return nil
		}
		off := s.off
		s.off += int64(len(line))
		if line = bytes.TrimSuffix(line, []byte{'\n'}); len(bytes.TrimLeft(line, " \t\r")) > 0 && !each(off, line) {
			return nil
		}
	}
	return ctx.Err()
}

// drain passes on what the source has. It reports false if yield did or the context has ended.
func (r *reader) drain(ctx context.Context, s *source, final bool, yield func(Entry, error) bool) bool {
	goOn := true
	err := s.read(ctx, final, func(off int64, text []byte) bool {
		raw := bytes.Trim(text, " \t\r")
		if l, ok := parse(raw); !ok {
			goOn = yield(Entry{}, &GarbageError{File: s.path, Offset: off, Size: int64(len(text))})
		} else if matches(&r.query, &l) {
			goOn = yield(l.entry(raw), nil)
		}
		return goOn
	})
	if goOn && err != nil && ctx.Err() == nil {
		goOn = yield(Entry{}, err)
	}
	return goOn && ctx.Err() == nil
}
