package atomicfile

import (
	"io/fs"
	"os"

	"github.com/lokt-dev/lokt/internal/faultfs"
)

// Pair keeps a file and its spare open from one Replace to the next, for a program that reads and replaces the same file
// again and again: that a name still leads to an open file is found out in half the time of opening it. As long as they
// are open nobody else can use the old version again, so a Pair is for files that one program replaces. The zero Pair has
// nothing open. It is not safe for concurrent use, and is always of the same path.
type Pair struct {
	at, spare *held // what is at the path, and what is the spare file, as far as they are open
}

// held is a file of a pair, open for reading and writing.
type held struct {
	faultfs.File
	is fs.FileInfo // tells it from others; as long as it is open, no other file gets its inode
}

// Close closes what is open. The pair is the zero Pair then.
func (p *Pair) Close() error {
	var err error
	for _, h := range []*held{p.at, p.spare} {
		if h != nil {
			if e := h.Close(); err == nil {
				err = e
			}
		}
	}
	*p = Pair{}
	return err
}

// Open returns how many files the pair keeps open.
func (p *Pair) Open() (n int) {
	for _, h := range []*held{p.at, p.spare} {
		if h != nil {
			n++
		}
	}
	return n
}

// ReadRegular is the function of that name. A nil Pair has nothing open either.
func (p *Pair) ReadRegular(fsys faultfs.FS, path string, limit int64) ([]byte, fs.FileInfo, error) {
	if p != nil && p.at != nil {
		fi, err := fsys.Lstat(path)
		if err == nil && sameFile(fi, p.at.is) && fi.Size() <= limit {
			data := make([]byte, fi.Size())
			if _, err := p.at.ReadAt(data, 0); err == nil {
				return data, fi, nil
			}
		}
		_ = p.Close()
	}
	return ReadRegular(fsys, path, limit)
}

// openSpare returns the spare file, open for reading and writing, and what is known of it.
func (p *Pair) openSpare(fsys faultfs.FS, path string) (*held, fs.FileInfo, error) {
	if h := p.spare; h != nil {
		p.spare = nil
		if fi, err := fsys.Lstat(path); err == nil && sameFile(fi, h.is) {
			return h, fi, nil
		}
		_ = h.Close()
	}
	f, err := fsys.OpenFile(path, os.O_RDWR|noFollow, 0) // a FIFO opened for both does not block
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return &held{f, fi}, fi, nil
}
