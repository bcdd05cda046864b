package auth

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt"
)

// Entry is one caller in a token file, or the end of one.
//
// The file has one JSON object per line. Lines are only ever appended: one that has Revoked set ends every earlier entry
// of the name, and Revoke makes comments of those by overwriting one byte of each. So two commands that change the file at the same
// time do not undo each other, the file tells who had access when, and no part of it, if it is copied and cut off between two lines,
// lets in whom the whole does not. (For lines with Revoked set that were written by other means the last is not true.)
// Lines may be removed with any editor. Empty lines, and those that begin with #, are ignored.
type Entry struct {
	Name    string     `json:"name"`
	SHA256  string     `json:"sha256,omitempty"` // of the token, in hexadecimal
	Cert    bool       `json:"certificate,omitempty"`
	Scopes  []Scope    `json:"scopes,omitempty"`
	Prefix  string     `json:"prefix,omitempty"` // only locks whose names begin so
	Created *time.Time `json:"created,omitempty"`
	Expires *time.Time `json:"expires,omitempty"`
	Revoked *time.Time `json:"revoked,omitempty"`
}

// Limits of the token file.
const (
	maxFile = 16 << 20
	maxLine = 64 << 10
)

// tokenPrefix begins every token, so that programs that look for leaked secrets know one when they see it.
const tokenPrefix = "lokt_"

// NewToken returns a new token: 256 random bits, and what the file keeps of it.
//
// That is its plain SHA-256. Passwords need a slow hash because people choose them and so they can be guessed; of 256
// random bits there are too many to try, however fast the hash is. And this one is computed for every request.
func NewToken() (token, hash string) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// ReadFile returns the entries of a token file that are neither revoked nor expired at the given time, in order; those that
// have expired, too, if the time is zero. A file
// that others than its owner and group may write to is refused: whoever can write to it can do everything.
func ReadFile(path string, now time.Time) ([]Entry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would keep everybody waiting
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("token file: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("token file %s is not a regular file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("token file %s has %d bytes, more than %d", path, info.Size(), maxFile)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0:
		return nil, fmt.Errorf("token file %s may be written by everybody: chmod o-w it", path)
	}
	var all []Entry
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("token file %s, line %d: %w", path, n, err)
		}
		if err := e.validate(); err != nil {
			return nil, fmt.Errorf("token file %s, line %d: %w", path, n, err)
		}
		if e.Revoked != nil {
			all = slices.DeleteFunc(all, func(old Entry) bool { return old.Name == e.Name })
			continue
		}
		all = append(all, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("token file %s: %w", path, err)
	}
	return slices.DeleteFunc(all, func(e Entry) bool { return e.expired(now) }), nil
}

func (e *Entry) expired(now time.Time) bool { return e.Expires != nil && !now.Before(*e.Expires) }

// validate reports the first thing wrong with the entry.
func (e *Entry) validate() error {
	if err := ValidateName(e.Name); err != nil {
		return err
	}
	if e.Revoked != nil {
		return nil
	}
	sum, err := hex.DecodeString(e.SHA256)
	switch {
	case e.Cert && e.SHA256 != "":
		return errors.New("an entry has a token or a certificate, not both")
	case !e.Cert && (err != nil || len(sum) != sha256.Size):
		return errors.New("sha256 is not 64 hexadecimal digits")
	case len(e.Scopes) == 0:
		return errors.New("there are no scopes")
	}
	for _, s := range e.Scopes {
		if !slices.Contains(Scopes(), s) {
			return fmt.Errorf("%q is no scope: there are %s", s, joinScopes(Scopes()))
		}
	}
	return lokt.ValidatePrefix(e.Prefix)
}

// ValidateName reports whether a caller can have the name: it shows in logs and in the metadata of locks.
func ValidateName(name string) error {
	if name == "" || len(name) > 128 {
		return errors.New("a name has 1 to 128 characters")
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' }); i >= 0 {
		return fmt.Errorf("name %q has a character other than printable ASCII without spaces, quotes and backslashes", name)
	}
	return nil
}

// Append adds an entry to the token file, which is made if there is none: for its user alone, and if that is root, for the
// owner of its directory.
func Append(path string, e Entry) error {
	if err := e.validate(); err != nil {
		return err
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		err = handOver(f)
	}
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	if info.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			line = append([]byte("\n"), line...) // what was there was cut off, or edited
		}
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	return nil
}

// Revoke ends every entry of the name in the token file, and returns how many there were, and whether one was a certificate's.
func Revoke(path, name string, now time.Time) (n int, certificate bool, err error) {
	all, err := ReadFile(path, time.Time{})
	if err != nil {
		return 0, false, err
	}
	for _, e := range all {
		if e.Name == name {
			n++
			certificate = certificate || e.Cert
		}
	}
	if n == 0 {
		return 0, false, nil
	}
	if err := Append(path, Entry{Name: name, Revoked: &now}); err != nil {
		return 0, false, err
	}
	return n, certificate, comment(path, name)
}

// comment makes comments of the entries of a name that are revoked.
func comment(path, name string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = fmt.Errorf("token file %s: %w", path, err)
		}
	}()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return err
	}
	var open, revoked []int64 // where entries begin
	at := 0
	for line := range bytes.Lines(text) {
		begin := at + len(line) - len(bytes.TrimLeft(line, " \t"))
		at += len(line)
		var e Entry
		if json.Unmarshal(line, &e) != nil || e.Name != name {
			continue
		}
		if e.Revoked == nil {
			open = append(open, int64(begin))
		} else {
			revoked, open = append(revoked, open...), nil
		}
	}
	for _, begin := range revoked {
		if _, err := f.WriteAt([]byte("#"), begin); err != nil {
			return err
		}
	}
	return f.Sync()
}

// stamp tells versions of a file apart.
type stamp struct {
	size int64
	mod  time.Time
	info fs.FileInfo
}

func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	return stamp{size: info.Size(), mod: info.ModTime(), info: info}, nil
}

func (s stamp) same(other stamp) bool {
	return s.info != nil && other.info != nil && s.size == other.size && s.mod.Equal(other.mod) && os.SameFile(s.info, other.info)
}
