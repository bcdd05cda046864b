package filestore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// A guard file has a line of text about fencing tokens in its first 512 bytes, and behind them the journal: the number
// of the shard's last change, and its entry if it may not be done.
const (
	headerSize    = 512
	headerFamily  = "lokt-guard-"
	headerVersion = 1
	headerMagic   = headerFamily + "1"
	journalHead   = 24      // number of the change, size of its entry, checksum of both and of the entry
	guardSize     = 4 << 10 // of a new guard file, so that entries need no further room on a full disk

	// tokenBlock is how many tokens one durable write reserves. After a boot the rest of the block is skipped.
	tokenBlock = 1 << 12

	// tokenEpochShift makes the first token of a new guard file the time since 1970 in units of 2^-20 s. Tokens then
	// rise even if the directory was deleted or restored from a copy, and stay below 2^53 until the year 2242.
	tokenEpochShift = 20
)

// guardPage is what a guard file says.
type guardPage struct {
	boot    string // of the kernel that issued the last token
	file    uint64 // which guard file that was: its inode and its time of birth
	token   uint64 // last token issued in the shard
	ceiling uint64 // last token reserved for good
	seq     uint64 // differs after every change of a lock of the shard
	entry   *entry // the change that was begun last, unless it is known to be done
	torn    bool   // there is an entry that has not been written to its end, or is just being written
}

// readPage reads a guard file. A header or an entry that cannot be understood counts as none: it was not written to its
// end, and nothing that it announces was done.
func readPage(f vfs.File, room *[guardSize]byte) (guardPage, error) {
	var p guardPage
	n, err := f.ReadAt(room[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return p, err
	}
	buf := room[:n]
	line, _, _ := bytes.Cut(buf[:min(n, headerSize)], []byte{'\n'})
	kind, _, _ := strings.Cut(string(line), " ")
	if digits, ours := strings.CutPrefix(kind, headerFamily); ours {
		if n, err := strconv.ParseUint(digits, 10, 32); err == nil && n > headerVersion {
			return p, fmt.Errorf("%w: %s is of a kind (%s) that a newer program wrote", lokt.ErrDamaged, f.Name(), kind)
		}
	}
	p.boot, p.file, p.token, p.ceiling = parseHeaderLine(string(line))
	if n < headerSize+journalHead {
		return p, nil
	}
	head, have := buf[headerSize:headerSize+journalHead], buf[headerSize+journalHead:]
	p.seq = binary.LittleEndian.Uint64(head)
	size := binary.LittleEndian.Uint64(head[8:])
	if p.torn = size != 0; size == 0 || size > maxEntry {
		return p, nil
	}
	if size > uint64(len(have)) {
		fi, err := f.Stat()
		if err != nil {
			return p, err
		}
		if fi.Size() < headerSize+journalHead+int64(size) {
			return p, nil
		}
		all := make([]byte, size)
		rest := all[copy(all, have):]
		if _, err := f.ReadAt(rest, headerSize+journalHead+int64(len(have))); err != nil && !errors.Is(err, io.EOF) {
			return p, err
		}
		have = all
	}
	have = have[:size]
	if binary.LittleEndian.Uint64(head[16:]) == journalSum(head, have) {
		p.entry = decodeEntry(have)
		p.torn = p.entry == nil
	}
	return p, nil
}

// journalSum returns the checksum of an entry and of what stands before it.
func journalSum(head, entry []byte) uint64 {
	return uint64(crc32.Update(crc32.ChecksumIEEE(head[:16]), crc32.IEEETable, entry))
}

// readSeq reads only which change of the shard was begun last.
func readSeq(f vfs.File) (uint64, error) {
	var b [8]byte
	if _, err := f.ReadAt(b[:], headerSize); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// issued returns the last token that the shard may have issued, as far as the page tells.
func (p guardPage) issued(boot string) uint64 {
	if p.boot == "" || p.boot != boot { // tokens issued after the last reservation may not have been written
		return p.ceiling
	}
	return p.token
}

// headerLine is what a guard file says about its tokens.
func headerLine(boot string, file, token, ceiling uint64) string {
	line := headerMagic + " " + cmp.Or(boot, "-")
	for _, n := range []uint64{file, token, ceiling} {
		line += " " + strconv.FormatUint(n, 10)
	}
	return line + " " + strconv.FormatUint(uint64(crc32.ChecksumIEEE([]byte(line))), 10)
}

// parseHeaderLine reads what headerLine wrote, and nothing else.
func parseHeaderLine(line string) (boot string, file, token, ceiling uint64) {
	f := strings.Fields(line)
	if len(f) != 6 {
		return "", 0, 0, 0
	}
	var n [3]uint64
	for i := range n {
		n[i], _ = strconv.ParseUint(f[i+2], 10, 64) // a word that is no number does not come back
	}
	if boot = f[1]; boot == "-" {
		boot = ""
	}
	if headerLine(boot, n[0], n[1], n[2]) != line {
		return "", 0, 0, 0
	}
	return boot, n[0], n[1], n[2]
}

// guard is a locked guard file: while it is held nobody else changes a lock of its shard.
type guard struct {
	s     *Store
	f     *guardFile
	shard *shard
	guardPage
	page    [guardSize]byte // for reading and writing
	fresh   bool            // the file has not got its full size yet
	pending bool            // an entry is in the journal
	unsure  bool            // the reservation of tokens may not be on the disk
	carry   string          // lines of earlier changes that the audit log lacks
}

// enter locks the guard file of the named lock, and finishes a change in its shard that was cut short.
func (s *Store) enter(ctx context.Context, name string) (*guard, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if s.closed.Load() {
		return nil, errClosed
	}
	n := shardOf(name)
	sh := s.shard(n)
	p := &patience{ctx: ctx, limit: s.o.LockTimeout, since: time.Now()}
	if err := sh.enter(p); err != nil {
		return nil, fmt.Errorf("lock %s: %w", s.guardPath(n), err)
	}
	p.since = time.Now()
	for {
		f, err := s.lockGuard(p, n)
		if err != nil {
			sh.leave()
			return nil, err
		}
		g := &guard{s: s, f: f, shard: sh}
		again, err := g.begin()
		if err == nil && !again {
			sh.entered.Add(1)
			return g, nil
		}
		g.unlock()
		if err != nil {
			sh.leave()
			return nil, err
		}
	}
}

// begin takes in what the locked file says. It reports true if the file is no longer the one to lock.
func (g *guard) begin() (again bool, err error) {
	fi, err := g.s.current(g.f)
	if err != nil || fi == nil {
		return err == nil, err
	}
	if vfs.Links(fi) > 1 {
		return false, linked(g.f.Name())
	}
	if g.guardPage, err = readPage(g.f, &g.page); err != nil {
		return false, err
	}
	g.fresh = fi.Size() < guardSize
	g.token, g.unsure = g.issued(g.s.sys.Boot()), g.guardPage.token+tokenBlock < g.ceiling
	// File systems use the inodes of deleted files again, often at once: a copy may well get that of the original.
	if file := g.f.mark(); file != g.file {
		g.token = max(g.token, g.ceiling, epoch(g.s.o.clock().Wall.UnixNano()))
		g.seq = max(g.seq, g.token)
		g.ceiling, g.file = 0, file
	}
	g.boot = g.s.sys.Boot()
	return false, g.recover()
}

// epoch returns the time as the token of a new guard file.
func epoch(nanoseconds int64) uint64 {
	n := uint64(max(nanoseconds, 0))
	return n/1e9<<tokenEpochShift + n%1e9<<tokenEpochShift/1e9
}

// unlock ends the kernel's lock.
func (g *guard) unlock() {
	_, _ = g.s.sys.Flock(g.f.File, false) // a child that is just being forked may have the file open too
	_ = g.f.Close()
}

// leave lets others in.
func (g *guard) leave() {
	g.unlock()
	g.shard.leave()
}

// prepare puts the tokens that a change issues, and its entry, which may be nil, on record before the change is made.
func (g *guard) prepare(token uint64, e *entry) error {
	if token > g.ceiling || g.unsure && token > g.token {
		if err := g.reserve(token); err != nil {
			return err
		}
	}
	at := headerSize
	clear(g.page[:headerSize+journalHead])
	if token > g.token || g.fresh {
		at, g.token = 0, max(token, g.token)
		copy(g.page[:headerSize], headerLine(g.boot, g.file, g.token, g.ceiling)+"\n")
	}
	g.seq++
	buf, err := g.encode(e)
	if err != nil {
		return err
	}
	if missing := guardSize - len(buf); g.fresh && missing > 0 {
		buf = append(buf, make([]byte, missing)...)
	}
	if _, err := g.f.WriteAt(buf[at:], int64(at)); err != nil {
		return fmt.Errorf("write guard file: %w", err)
	}
	g.fresh, g.pending = false, e != nil
	if e != nil && e.durable() {
		if err := g.f.Sync(); err != nil {
			return fmt.Errorf("sync guard file: %w", err)
		}
	}
	return nil
}

// reserve puts a block of tokens on the disk. Until it is there the line says that none of it was issued: if this fails or is
// cut short, whoever comes next does it again.
func (g *guard) reserve(token uint64) error {
	first := g.unsure || g.ceiling == 0
	ceiling := token + tokenBlock
	clear(g.page[:headerSize])
	copy(g.page[:], headerLine(g.boot, g.file, min(g.token, token-1), ceiling)+"\n")
	_, err := g.f.WriteAt(g.page[:headerSize], 0)
	if err == nil {
		err = g.f.Sync()
	}
	if err == nil && first { // so that the file itself is not lost, in a directory that can be read
		if err = g.s.fs.SyncDir(filepath.Join(g.s.root, dirGuards)); errors.Is(err, fs.ErrPermission) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("reserve tokens: %w", err)
	}
	g.ceiling, g.unsure, g.token = ceiling, false, min(g.token, token-1)
	return nil
}

// encode returns the guard file's page with the entry. It leaves the line about tokens as it is.
func (g *guard) encode(e *entry) ([]byte, error) {
	buf := g.page[:headerSize+journalHead]
	if e != nil {
		text, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("journal of %s: %w", g.f.Name(), err)
		}
		buf = append(buf, text...)
	}
	g.putHead(buf[headerSize:], buf[headerSize+journalHead:])
	return buf, nil
}

func (g *guard) putHead(b, entry []byte) {
	binary.LittleEndian.PutUint64(b, g.seq)
	binary.LittleEndian.PutUint64(b[8:], uint64(len(entry)))
	binary.LittleEndian.PutUint64(b[16:], journalSum(b, entry))
}

// journal replaces the entry without announcing another change. A nil entry means that nothing is left to do.
func (g *guard) journal(e *entry) error {
	if e == nil && !g.pending {
		return nil
	}
	buf, err := g.encode(e)
	if err != nil {
		return err
	}
	if _, err := g.f.WriteAt(buf[headerSize:], headerSize); err != nil {
		return fmt.Errorf("write guard file: %w", err)
	}
	g.pending = e != nil
	return nil
}
