package sqlstore

// The mark: a small file beside the database of SQLite that says how far its log had come. SQLite takes a damaged log
// for one that ends early, and one that is missing for one that was never there; the mark tells. It is written with
// every transaction that was flushed, and flushed itself some times a second. So it is exact unless the power fails,
// and then behind by that much.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/lokt-dev/lokt"
)

// markText is what the mark says.
type markText struct {
	Number   uint64 `json:"number"` // of the writing: the higher one holds
	Database string `json:"database"`
	Commits  uint64 `json:"commits"`
	highest
	Clean bool `json:"clean,omitzero"` // the database was closed
}

// mark is the file. It has two slots, written in turn, so that one is whole whenever a writing is interrupted.
type mark struct {
	file  *os.File
	text  markText
	dirty atomic.Bool // written, and not flushed
}

const markSlot = 512

func markPath(path string) string { return path + "-mark" }

// readMark reads the mark of a database. It is not found if there is none, and damaged if neither slot can be read.
func readMark(path string) (m markText, found bool, err error) {
	b, err := os.ReadFile(markPath(path))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 { // it was being made
		return m, false, nil
	} else if err != nil {
		return m, false, unavailable(err)
	}
	for at := 0; at < len(b); at += markSlot {
		line, _, _ := bytes.Cut(b[at:min(at+markSlot, len(b))], []byte("\n"))
		sum, text, ok := bytes.Cut(line, []byte(" "))
		var slot markText
		ok = ok && string(sum) == fmt.Sprintf("%08x", checksum(string(text))) && lokt.Unmarshal(text, &slot) == nil
		if ok && slot.Number >= m.Number {
			m, found = slot, true
		}
	}
	if !found {
		return m, false, fmt.Errorf("%w: mark %s, which says how far the log had come", lokt.ErrDamaged, markPath(path))
	}
	return m, true, nil
}

// openMark opens the mark for writing.
func openMark(path string, was markText) (*mark, error) {
	f, err := os.OpenFile(markPath(path), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, unavailable(err)
	}
	return &mark{file: f, text: was}, nil
}

// write says how far the database has come.
func (m *mark) write(s *state, clean bool) error {
	m.text = markText{m.text.Number + 1, s.Database, s.Commits, s.highest, clean}
	text, err := lokt.Marshal(m.text)
	if err != nil {
		return err
	}
	slot := bytes.Repeat([]byte(" "), markSlot)
	copy(slot, fmt.Sprintf("%08x %s\n", checksum(string(text)), text))
	slot[markSlot-1] = '\n'
	m.dirty.Store(true)
	_, err = m.file.WriteAt(slot, int64(m.text.Number%2)*markSlot)
	return err
}

// flush flushes what was written.
func (m *mark) flush() error {
	if !m.dirty.Swap(false) {
		return nil
	}
	return m.file.Sync()
}

// scanLog looks at a log of SQLite before that does, and reports whether it ends early: behind the first frame that
// is not what was written there are others of the same log that end a transaction. Such frames are left by a damaged
// log; but also by a loss of power, when the end of a transaction that nobody was told of came to the disk before its
// beginning.
func scanLog(path string) (early bool, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) < 32 { // a log without a header says nothing
		return false, nil
	} else if err != nil {
		return false, unavailable(err)
	}
	header, b := b[:32], b[32:]
	var order binary.ByteOrder = binary.LittleEndian
	magic, size := binary.BigEndian.Uint32(header), int(binary.BigEndian.Uint32(header[8:]))
	if magic&1 == 1 {
		order = binary.BigEndian
	}
	sum := [2]uint32{}
	addLog(&sum, order, header[:24])
	if magic&^1 != 0x377f0682 || size < 512 || size > 65536 || sum != logSum(header[24:]) {
		return !bytes.Equal(header, make([]byte, 32)), nil
	}
	for whole := true; len(b) >= 24+size; b = b[24+size:] {
		frame := b[:24+size]
		ours, ends := bytes.Equal(frame[8:16], header[16:24]), binary.BigEndian.Uint32(frame[4:]) != 0
		if whole {
			addLog(&sum, order, frame[:8])
			addLog(&sum, order, frame[24:])
			whole = ours && sum == logSum(frame[16:])
		}
		if !whole && ours && ends {
			return true, nil
		}
	}
	return false, nil
}

func logSum(b []byte) [2]uint32 {
	return [2]uint32{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}

// addLog adds to the checksum that SQLite's logs have.
func addLog(sum *[2]uint32, order binary.ByteOrder, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		sum[0] += order.Uint32(b) + sum[1]
		sum[1] += order.Uint32(b[4:]) + sum[0]
	}
}
