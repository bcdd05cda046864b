package auth

import (
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
	"time"
	"unicode"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/renewed"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// Entry is one caller in a token file.
//
// The file has one JSON object per line. Lines are only appended, and Revoke makes comments of them by overwriting a byte
// of each. So two commands at the same time do not undo each other, and a copy that is cut off between two lines lets in
// nobody whom the whole does not. Empty lines and comments (#) are ignored.
type Entry struct {
	Name    string     `json:"name"`
	SHA256  string     `json:"sha256,omitempty"` // of the token, in hexadecimal
	Cert    bool       `json:"certificate,omitempty"`
	Scopes  []Scope    `json:"scopes,omitempty"`
	Prefix  string     `json:"prefix,omitempty"` // only locks whose names begin so
	Created *time.Time `json:"created,omitempty"`
	Expires *time.Time `json:"expires,omitempty"`
}

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
	var text []byte
	var info fs.FileInfo
	target, err := filepath.EvalSymlinks(path) // secrets are mounted as links
	if err == nil {
		text, info, err = atomicfile.ReadRegular(vfs.OS(), target, renewed.MaxFile)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("token file: %w", err)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0:
		return nil, fmt.Errorf("token file %s may be written by everybody: chmod o-w it", path)
	}
	var all []Entry
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
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
		all = append(all, e)
	}
	return slices.DeleteFunc(all, func(e Entry) bool { return e.expired(now) }), nil
}

func (e *Entry) expired(now time.Time) bool { return e.Expires != nil && !now.Before(*e.Expires) }

// validate reports the first thing wrong with the entry.
func (e *Entry) validate() error {
	if err := ValidateName(e.Name); err != nil {
		return err
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
		if err := checkScope(s); err != nil {
			return err
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
	return appendLine(path, line)
}

func appendLine(path string, line []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("token file: %w", err)
		}
	}()
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
// certificate's. A comment says so.
func Revoke(path, name string, now time.Time) (n int, certificate bool, err error) {
	if _, err := ReadFile(path, now); err != nil {
		return 0, false, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, false, fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, renewed.MaxFile))
	at := int64(0)
	for line := range bytes.Lines(text) {
		begin := at + int64(len(line)-len(bytes.TrimLeftFunc(line, unicode.IsSpace)))
		at += int64(len(line))
		var e Entry
		if err != nil || json.Unmarshal(bytes.TrimSpace(line), &e) != nil || e.Name != name {
			continue
		}
		_, err = f.WriteAt([]byte("#"), begin)
		n, certificate = n+1, certificate || e.Cert
	}
	if n > 0 && err == nil {
		err = f.Sync()
	}
	if err != nil {
		return 0, false, fmt.Errorf("token file %s: %w", path, err)
	}
	if n > 0 { // daemons see that the file has another size, though it has changed a moment after they read it
		err = appendLine(path, fmt.Appendf(nil, "# %s: revoked at %s", name, now.Format(time.RFC3339)))
	}
	return n, certificate, err
}
