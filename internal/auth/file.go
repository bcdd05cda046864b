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
// The file has one JSON object per line. Lines are only appended: one with Revoked ends every earlier entry of the
// name, and Revoke turns those into comments by overwriting a byte of each. So two commands at the same time do not
// undo each other, and a copy that is cut off between two lines lets in nobody whom the whole does not. Empty lines and
// comments (#) are ignored.
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

// NewToken returns a new token and what the file keeps of it: its plain SHA-256. Slow hashes are for passwords, which
// can be guessed; this one is computed for every request, and of 256 random bits there are too many to try.
func NewToken() (token, hash string) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// ReadFile returns the entries of a token file that are neither revoked nor expired at the given time, in order; those
// that have expired, too, if the time is zero. A file that everybody may write to is refused.
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
		err := json.Unmarshal(line, &e)
		if err == nil {
			err = e.validate()
		}
		if err != nil {
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

// Append adds an entry to the token file, which is made if there is none: for its user alone, and if that is root, for
// the owner of its directory.
func Append(path string, e Entry) error {
	if err := e.validate(); err != nil {
		return err
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err = appendLine(path, line); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	return nil
}

func appendLine(path string, line []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	last := []byte{'\n'}
	if info.Size() == 0 {
		err = handOver(f)
	} else {
		_, err = f.ReadAt(last, info.Size()-1)
	}
	if err != nil {
		return err
	}
	if last[0] != '\n' { // what was there was cut off, or edited
		line = append([]byte("\n"), line...)
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return err
	}
	return f.Sync()
}

// Revoke ends every entry of the name in the token file, and returns how many there were, and whether one was a
// certificate's.
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
