package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
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

// reader reads all files of a log as one.
type reader struct {
	log     *Log
	query   Query
	sources []*source // oldest first
	last    int       // highest number of a file to look for
	buf     []byte
	told    map[string]string // by path: what is wrong with the file, told already
}

func (l *Log) reader(q Query) *reader {
	return &reader{log: l, query: q, last: l.last(), buf: make([]byte, 64<<10)}
}

func (r *reader) close() {
	for _, s := range r.sources {
		s.f.Close()
	}
	r.sources = nil
}

// look finds the log's files and how far each can be read now. It returns what is wrong with those that cannot be, each
// thing once.
//
// Sizes are taken from the newest file to the oldest and used from the oldest to the newest. So if an entry in a newer
// file is seen, those that were appended before it are too, even by a writer that was slow to write to a file just rotated.
func (r *reader) look(ctx context.Context) []error {
	wrong := map[string]error{}
	var before []place
	for range maxLooks {
		clear(wrong)
		now := r.find(wrong)
		if ctx.Err() != nil || r.settled(now) || slices.Equal(now, before) {
			break
		}
		before = now
	}
	r.sources = slices.DeleteFunc(r.sources, func(s *source) bool {
		lost := !s.found && !s.placed // deleted before it was known which files it comes before
		if lost {
			s.f.Close()
		}
		s.placed = true
		return lost
	})
	for _, s := range slices.Backward(r.sources) {
		if s.measure(); s.end-s.off > maxRead {
			wrong[s.path] = fmt.Errorf("%s has %d bytes: only the last %d are read", s.path, s.end, maxRead)
			s.off, s.mark = s.end-maxRead, nil
			s.next()
			s.junk = true // it begins before that
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

// maxRead bounds how much of one file is read, in bytes. Logs are rotated long before.
const maxRead = 64 << 20

// maxLooks bounds how often the files are looked for again because they were rotated meanwhile.
const maxLooks = 1000

// place is where a file of the log was met.
type place struct {
	number int
	source *source
}

// find looks for the files once, from the newest to the oldest. Their numbers only grow, and so does the one looked for:
// no file is missed, but one may be met twice, and if several rotations came between, the order may be wrong.
func (r *reader) find(wrong map[string]error) (met []place) {
	for _, s := range r.sources {
		s.found = false
	}
	var found []*source
	for i := range r.last + 1 {
		path := r.log.path(i)
		s, err := r.source(path, found)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				wrong[path] = err
			}
			continue
		}
		met = append(met, place{i, s})
		if !s.found {
			s.found, s.path = true, path
			found = append(found, s)
		}
	}
	slices.Reverse(found)
	gone := slices.DeleteFunc(r.sources, func(s *source) bool { return s.found })
	r.sources = append(gone, found...)
	return met
}

// settled reports whether no rotation came between the places where files were met: audit.log still is what it was.
func (r *reader) settled(met []place) bool {
	if len(met) == 0 || met[0].number != 0 {
		return false
	}
	fi, err := os.Lstat(r.log.path(0))
	return err == nil && os.SameFile(fi, met[0].source.fi)
}

// source returns the source for the file at the path: one that is known or was just found, or a new one.
func (r *reader) source(path string, found []*source) (*source, error) {
	known := func(fi fs.FileInfo) *source {
		same := func(s *source) bool { return os.SameFile(s.fi, fi) }
		if i := slices.IndexFunc(r.sources, same); i >= 0 {
			return r.sources[i]
		}
		if i := slices.IndexFunc(found, same); i >= 0 {
			return found[i]
		}
		return nil
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if s := known(fi); s != nil {
		return s, nil
	}
	f, fi, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if s := known(fi); s != nil {
		f.Close()
		return s, nil
	}
	return &source{f: f, fi: fi}, nil
}

// source is a file of the log and how much of it has been read. It stays open, so that rotation can neither take it away nor
// let another file be mistaken for it.
type source struct {
	f      *os.File
	fi     fs.FileInfo // for its identity only
	path   string
	found  bool // it was met when last looked for
	placed bool // its place among r.sources is certain
	broken bool // reading failed, which has been reported
	off    int64
	end    int64

	// The line whose end has not been read yet.
	line []byte // without leading space; empty if it cannot be an entry
	size int64
	junk bool // it cannot be an entry: only its size matters

	mark []byte // what stands before off: if it no longer does, the file was truncated and filled again
}

// markSize is enough for most lines, which differ in their times.
const markSize = 256

// measure takes the size up to which the file can be read now. A file that was truncated is read from its beginning.
func (s *source) measure() {
	fi, err := s.f.Stat()
	if err != nil || s.broken {
		s.end = s.off
		return
	}
	s.end = fi.Size()
	if s.end < s.off || s.end > s.off && !s.marked() {
		s.off, s.mark = 0, nil
		s.next()
	}
}

func (s *source) marked() bool {
	have := make([]byte, len(s.mark))
	_, err := s.f.ReadAt(have, s.off-int64(len(s.mark)))
	return err != nil || bytes.Equal(have, s.mark)
}

// next begins a new line.
func (s *source) next() {
	s.size, s.junk = 0, false
	if s.line = s.line[:0]; cap(s.line) > 1<<20 {
		s.line = nil
	}
}

// read calls each for every line that ends before s.end and is not empty, until it returns false.
func (s *source) read(ctx context.Context, buf []byte, each func() bool) error {
	for s.off < s.end {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := s.f.ReadAt(buf[:min(int64(len(buf)), s.end-s.off)], s.off)
		if n == 0 {
			if errors.Is(err, io.EOF) { // truncated: the next look sees it
				return nil
			}
			return err
		}
		s.mark = append(s.mark, buf[max(0, n-markSize):n]...)
		s.mark = append(s.mark[:0], s.mark[max(0, len(s.mark)-markSize):]...)
		for rest := buf[:n]; len(rest) > 0; {
			part, after, ends := bytes.Cut(rest, []byte{'\n'})
			s.extend(part)
			s.off += int64(len(rest) - len(after))
			rest = after
			if !ends {
				break
			}
			if (s.junk || len(s.line) > 0) && !each() {
				return nil
			}
			s.next()
		}
	}
	return nil
}

// extend adds to the line.
func (s *source) extend(part []byte) {
	s.size += int64(len(part))
	if s.junk {
		return
	}
	if len(s.line) == 0 {
		if part = bytes.TrimLeft(part, " \t\r"); len(part) > 0 && part[0] != '{' {
			s.junk = true
			return
		}
	}
	s.line = append(s.line, part...)
}

// skip passes over all lines that end before s.end.
func (s *source) skip(buf []byte) {
	s.next()
	s.mark = nil
	for s.off = s.end; s.off > 0; {
		if s.end-s.off > maxRead {
			s.off, s.junk = s.end, true
			return
		}
		n := min(int64(len(buf)), s.off)
		got, err := s.f.ReadAt(buf[:n], s.off-n)
		if err != nil && !errors.Is(err, io.EOF) {
			return
		}
		if i := bytes.LastIndexByte(buf[:got], '\n'); i >= 0 {
			s.off += int64(i) + 1 - n
			return
		}
		s.off -= n
	}
}

// drain passes on what the source has, and what is left at its end if it is final. It reports false if yield did or the
// context has ended.
func (r *reader) drain(ctx context.Context, s *source, final bool, yield func(Entry, error) bool) bool {
	goOn := true
	give := func(ended int64) bool {
		raw := bytes.TrimRight(s.line, " \t\r")
		if l, ok := parse(raw); s.junk || !ok {
			goOn = yield(Entry{}, &GarbageError{File: s.path, Offset: s.off - s.size - ended, Size: s.size})
		} else if r.query.matches(l) {
			goOn = yield(l.entry(raw), nil)
		}
		return goOn
	}
	err := s.read(ctx, r.buf, func() bool { return give(1) })
	switch {
	case !goOn || ctx.Err() != nil:
		return false
	case err != nil:
		s.broken = true
		return yield(Entry{}, err)
	case final && (s.junk || len(s.line) > 0): // no newline: crashed, or not finished yet
		return give(0)
	}
	return true
}
