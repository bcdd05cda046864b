package filestore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/faultfs"
	"github.com/lokt-dev/lokt/internal/process"
)

// A guard file holds, in its first 512 bytes, one line of text about fencing tokens, and behind them the journal.
const (
	headerSize  = 512
	headerMagic = "lokt-guard-1"
	journalHead = 24 // length, checksum, and the revision of the lock before the change

	// tokenBlock is how many tokens are reserved at once by a write that survives the loss of power. After a restart
	// of the host the rest of the block is skipped.
	tokenBlock = 1 << 12

	// tokenEpochShift makes the first token of a new guard file the seconds since 1970 times 2^20, so that tokens rise
	// even if the directory was deleted, or restored from an older copy. They stay below 2^53 until the year 2242.
	tokenEpochShift = 20
)

// shardSet keeps goroutines of one process from queuing in the kernel, where a context could not call them back.
type shardSet struct {
	mu sync.Mutex
	in map[uint8]chan struct{}
}

func (s *shardSet) enter(ctx context.Context, shard uint8) (leave func(), err error) {
	s.mu.Lock()
	if s.in == nil {
		s.in = map[uint8]chan struct{}{}
	}
	c := s.in[shard]
	if c == nil {
		c = make(chan struct{}, 1)
		s.in[shard] = c
	}
	s.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// guard is a locked guard file: while it is held nobody else changes a lock of its shard.
type guard struct {
	s       *Store
	f       faultfs.File
	done    func()
	token   uint64 // last token issued in the shard
	ceiling uint64 // last token reserved for good
	boot    string
	inode   uint64
	journal []byte // lines that a crashed change may not have appended to the audit log
	before  uint64 // revision of the lock before that change
}

// enter locks the guard file of the named lock.
func (s *Store) enter(ctx context.Context, name string) (*guard, error) {
	shard := shardOf(name)
	done, err := s.shards.enter(ctx, shard)
	if err != nil {
		return nil, err
	}
	for {
		f, err := s.openGuard(shard)
		if err != nil {
			done()
			return nil, err
		}
		if err := s.flock(ctx, f); err != nil {
			done()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		g := &guard{s: s, f: f, done: done}
		fi, err := f.Stat()
		if err == nil && !fi.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", f.Name())
		}
		if err == nil && linkCount(fi) == 0 { // the directory was deleted between opening and locking
			g.unlock()
			continue
		}
		if err == nil {
			g.inode = inode(fi)
			err = g.read()
		}
		if err != nil {
			g.leave()
			return nil, err
		}
		return g, nil
	}
}

func (s *Store) guardPath(shard uint8) string {
	const hex = "0123456789abcdef"
	return filepath.Join(s.root, dirGuards, string([]byte{hex[shard>>4], hex[shard&15]}))
}

func (s *Store) openGuard(shard uint8) (faultfs.File, error) {
	path := s.guardPath(shard)
	f, err := s.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|openNoFollow, filePerm)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.makeDirs(); err != nil {
			return nil, err
		}
		f, err = s.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|openNoFollow, filePerm)
	}
	return f, err
}

func (g *guard) unlock() {
	_ = funlock(g.f)
	_ = g.f.Close()
}

// leave lets others in.
func (g *guard) leave() {
	g.unlock()
	g.done()
}

// read takes in the header and the journal. A header that cannot be read counts as none.
func (g *guard) read() error {
	buf := make([]byte, headerSize+4096)
	n, err := g.f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	buf = buf[:n]
	g.parseHeader(buf[:min(n, headerSize)])
	if n <= headerSize+journalHead {
		return nil
	}
	buf = buf[headerSize:]
	size := binary.LittleEndian.Uint64(buf)
	if size == 0 || size > 64<<20 {
		return nil
	}
	lines := make([]byte, size)
	if have := copy(lines, buf[journalHead:]); have < len(lines) {
		if _, err := g.f.ReadAt(lines[have:], int64(headerSize+journalHead+have)); err != nil {
			return nil // the journal was not written to its end: nor was anything after it
		}
	}
	if binary.LittleEndian.Uint64(buf[8:]) == uint64(crc32.ChecksumIEEE(lines)) {
		g.journal, g.before = lines, binary.LittleEndian.Uint64(buf[16:])
	}
	return nil
}

func (g *guard) parseHeader(b []byte) {
	line, _, _ := bytes.Cut(b, []byte{'\n'})
	boot, node, token, ceiling, ok := parseHeaderLine(string(line))
	if !ok {
		boot, node, token, ceiling = "", 0, 0, 0
	}
	g.boot, g.token, g.ceiling = process.BootID(), token, ceiling
	if boot != g.boot || boot == "" { // tokens issued after the last reservation may not have been written
		g.token = ceiling
	}
	if node != g.inode {
		g.token = max(g.token, uint64(g.s.o.clock().Wall.Unix())<<tokenEpochShift)
	}
}

// headerLine is what a guard file says about its tokens: "lokt-guard-1 BOOT INODE LAST RESERVED CHECKSUM".
func headerLine(boot string, node, token, ceiling uint64) string {
	if boot == "" {
		boot = "-"
	}
	line := headerMagic + " " + boot + " " + utoa(node) + " " + utoa(token) + " " + utoa(ceiling)
	return line + " " + utoa(uint64(crc32.ChecksumIEEE([]byte(line))))
}

func utoa(n uint64) string { return strconv.FormatUint(n, 10) }

// parseHeaderLine reads what headerLine wrote.
func parseHeaderLine(line string) (boot string, node, token, ceiling uint64, ok bool) {
	f := strings.Fields(line)
	if len(f) != 6 || f[0] != headerMagic {
		return "", 0, 0, 0, false
	}
	var n [3]uint64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseUint(f[i+2], 10, 64); err != nil {
			return "", 0, 0, 0, false
		}
	}
	if boot = f[1]; boot == "-" {
		boot = ""
	}
	return boot, n[0], n[1], n[2], headerLine(boot, n[0], n[1], n[2]) == line
}

// repair appends to the audit log what a change that crashed could not.
func (g *guard) repair(st *state) error {
	if g.journal == nil {
		return nil
	}
	for line := range bytes.Lines(g.journal) {
		if g.before == st.snap.Lock.Revision && bytes.Contains(line, []byte(`"name":"`+st.name+`"`)) {
			continue // the change was not made
		}
		if logged, err := g.s.log.Contains(line); err != nil || logged {
			continue
		}
		if err := g.s.appendAudit(line); err != nil {
			g.s.o.Warn(fmt.Errorf("audit log: %w", err))
			return nil
		}
	}
	return g.settle()
}

// prepare writes what must be on record before the change is: the tokens it issues, and what to tell the audit log.
func (g *guard) prepare(token, before uint64, lines []byte) error {
	if token > g.token || g.ceiling == 0 {
		reserve := token > g.ceiling || g.ceiling == 0
		if reserve {
			g.ceiling = max(token, g.ceiling) + tokenBlock
		}
		g.token = max(token, g.token)
		header := bytes.Repeat([]byte{' '}, headerSize)
		copy(header, headerLine(g.boot, g.inode, g.token, g.ceiling)+"\n")
		if _, err := g.f.WriteAt(header, 0); err != nil {
			return fmt.Errorf("write guard file: %w", err)
		}
		if reserve {
			if err := g.f.Sync(); err != nil {
				return fmt.Errorf("sync guard file: %w", err)
			}
		}
	}
	if len(lines) == 0 {
		return nil
	}
	entry := make([]byte, journalHead+len(lines))
	binary.LittleEndian.PutUint64(entry, uint64(len(lines)))
	binary.LittleEndian.PutUint64(entry[8:], uint64(crc32.ChecksumIEEE(lines)))
	binary.LittleEndian.PutUint64(entry[16:], before)
	copy(entry[journalHead:], lines)
	if _, err := g.f.WriteAt(entry, headerSize); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	g.journal = lines
	return nil
}

// settle empties the journal: the audit log has everything.
func (g *guard) settle() error {
	if g.journal == nil {
		return nil
	}
	g.journal = nil
	if _, err := g.f.WriteAt(make([]byte, journalHead), headerSize); err != nil {
		g.s.o.Warn(fmt.Errorf("guard file %s: %w", g.f.Name(), err)) // an entry may be repeated, none is lost
	}
	return nil
}

// encodeEvents returns the events as lines of the audit log.
func encodeEvents(events []lokt.Event) []byte {
	if len(events) == 0 {
		return nil
	}
	return audit.Encode(events)
}

func (s *Store) appendAudit(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	return s.log.Append(lines)
}

// flockSpin is how long to look again for a kernel lock before sleeping in the kernel for it: changes are short.
const flockSpin = 2 * time.Millisecond

// flock takes the exclusive kernel lock on f. If ctx ends first, f is closed as soon as the kernel lets go of it.
func (s *Store) flock(ctx context.Context, f faultfs.File) error {
	start := time.Now()
	for {
		ok, err := tryFlock(f)
		if err != nil {
			_ = f.Close()
			return err
		}
		if ok {
			return nil
		}
		if time.Since(start) > flockSpin {
			break
		}
		time.Sleep(50 * time.Microsecond)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.LockTimeout, fmt.Errorf(
		"another process has kept it locked for %v: it may be stopped (see `lslocks`)", s.o.LockTimeout))
	defer cancel()
	locked := make(chan error, 1)
	go func() { locked <- blockingFlock(f) }()
	select {
	case err := <-locked:
		if err != nil {
			_ = f.Close()
		}
		return err
	case <-ctx.Done():
		go func() {
			if <-locked == nil {
				_ = funlock(f)
			}
			_ = f.Close()
		}()
		return context.Cause(ctx)
	}
}
