package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/auth"
)

// tokenOptions are the flags of loktd token create.
type tokenOptions struct {
	scopes      string
	prefix      string
	expires     string
	certificate bool
}

func (o *tokenOptions) bind(fs *pflag.FlagSet) {
	fs.StringVar(&o.scopes, "scopes", "read,lock,submit,work", "`SCOPES` of the holder: read, lock, force, submit, work, admin")
	fs.StringVar(&o.prefix, "prefix", "", "`PREFIX` of the names of locks that it is good for")
	fs.StringVar(&o.expires, "expires", "", "`TIME` after which it ends: 720h, 30d")
	fs.BoolVar(&o.certificate, "certificate", false, "NAME is that of a client certificate, and there is no token")
}

// create adds an entry to the token file and prints the token, which nobody can read there later.
func (o *tokenOptions) create(_ context.Context, s Streams, c *Config, args []string) error {
	name := args[0]
	scopes, err := auth.ParseScopes(o.scopes)
	if err != nil {
		return &usageError{fmt.Errorf("--scopes: %w", err)}
	}
	if err := auth.ValidateName(name); err != nil {
		return &usageError{err}
	}
	if err := lokt.ValidatePrefix(o.prefix); err != nil {
		return &usageError{fmt.Errorf("--prefix: %w", err)}
	}
	now := time.Now().UTC().Truncate(time.Second)
	e := auth.Entry{Name: name, Scopes: scopes, Prefix: o.prefix, Cert: o.certificate, Created: &now}
	if o.expires != "" {
		d, err := lifetime(o.expires)
		if err != nil {
			return &usageError{fmt.Errorf("--expires: %w", err)}
		}
		until := now.Add(d)
		e.Expires = &until
	}
	token := ""
	if !o.certificate {
		token, e.SHA256 = auth.NewToken()
	}
	// What is added to a file that cannot be read counts for no daemon.
	if _, err := auth.ReadFile(c.Tokens, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("nothing was made: %w", err)
	}
	if err := auth.Append(c.Tokens, e); err != nil {
		return err
	}
	if token == "" {
		fmt.Fprintf(s.Err, "loktd: who has a certificate of the name %s may %s\n", name, o.scopes)
		return nil
	}
	fmt.Fprintln(s.Out, token)
	fmt.Fprintf(s.Err, "loktd: token %s may %s; it is shown this once\n", name, o.scopes)
	return nil
}

// lifetime reads a duration, also in days.
func lifetime(v string) (time.Duration, error) {
	if n, ok := strings.CutSuffix(v, "d"); ok {
		days, err := strconv.ParseFloat(n, 64)
		if err != nil || !(days > 0 && days <= 36500) { // nor not a number
			return 0, fmt.Errorf("%q is no number of days up to 36500: write 30d, or 720h", v)
		}
		return time.Duration(days * float64(24*time.Hour)), nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is no lifetime: write 720h or 30d", v)
	}
	return d, nil
}

// listTokens shows the tokens that are not revoked, those that have expired too: one of these may be the reason of a
// refusal.
func listTokens(_ context.Context, s Streams, c *Config, _ []string) error {
	all, err := auth.ReadFile(c.Tokens, time.Time{})
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tKIND\tSCOPES\tPREFIX\tCREATED\tEXPIRES")
	for _, e := range all {
		kind := "token"
		if e.Cert {
			kind = "certificate"
		}
		scopes := strings.ReplaceAll(strings.Trim(fmt.Sprint(e.Scopes), "[]"), " ", ",")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Name, kind, scopes, cmp.Or(e.Prefix, "-"), day(e.Created, false), day(e.Expires, true))
	}
	return w.Flush()
}

// day returns a time for people. What is over is said to have expired, if it is the end of something.
func day(t *time.Time, end bool) string {
	switch {
	case t == nil:
		return "-"
	case end && !time.Now().Before(*t):
		return t.UTC().Format(time.RFC3339) + " (expired)"
	}
	return t.UTC().Format(time.RFC3339)
}

// revokeToken ends every entry of the name.
func revokeToken(_ context.Context, s Streams, c *Config, args []string) error {
	name := args[0]
	now := time.Now().UTC().Truncate(time.Second)
	n, certificate, err := auth.Revoke(c.Tokens, name, now)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("there is no %q in %s", name, c.Tokens)
	}
	fmt.Fprintf(s.Err, "loktd: revoked %q; a running daemon knows within a second or two\n", name)
	if certificate {
		fmt.Fprintf(s.Err, "loktd: a certificate of that name may do what --client-scopes says; none there lets in only names in the file\n")
	}
	return nil
}
