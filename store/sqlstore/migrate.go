package sqlstore

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/lokt-dev/lokt"
)

//go:embed migrations
var migrations embed.FS

// migration brings a database to a version from the one before.
type migration struct {
	version int64
	text    string
	beside  int64 // programs that know this version may use the database beside newer ones
}

// listMigrations returns a dialect's migrations, in order: the files NNNN.sql of its directory, without gaps from 1 on.
func listMigrations(dialect string) ([]migration, error) {
	dir := "migrations/" + dialect
	files, err := fs.ReadDir(migrations, dir)
	if err != nil {
		return nil, err
	}
	var all []migration
	for i, f := range files {
		n, err := strconv.Atoi(strings.TrimSuffix(f.Name(), ".sql"))
		if err != nil || n != i+1 {
			return nil, fmt.Errorf("migration %s/%s is not number %d", dir, f.Name(), i+1)
		}
		text, err := fs.ReadFile(migrations, dir+"/"+f.Name())
		if err != nil {
			return nil, err
		}
		m := migration{int64(n), string(text), int64(n)}
		if _, line, ok := strings.Cut(m.text, "\n-- beside: "); ok {
			line, _, _ = strings.Cut(line, "\n")
			if m.beside, err = strconv.ParseInt(line, 10, 64); err != nil {
				return nil, fmt.Errorf("migration %s/%s is beside %q", dir, f.Name(), line)
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// applicationID marks databases of SQLite as lokt's: "lokt" in ASCII.
const applicationID = 0x6c6f6b74

// identify returns the version of a database of SQLite, 0 if it is empty. It changes nothing.
func identify(ctx context.Context, c *conn) (version int64, err error) {
	mark, err := one(ctx, c, "PRAGMA application_id")
	if err != nil {
		return 0, err
	}
	if version, err = one(ctx, c, "PRAGMA user_version"); err != nil {
		return 0, err
	}
	tables, err := one(ctx, c, "SELECT count(*) FROM sqlite_master")
	if err != nil {
		return 0, err
	}
	if mark != applicationID && (mark != 0 || version != 0 || tables != 0) {
		return 0, fmt.Errorf("%w: it is the database of another program", lokt.ErrInvalid)
	}
	all, err := listMigrations("sqlite")
	if err != nil {
		return 0, err
	}
	if newest := int64(len(all)); version > newest {
		return 0, fmt.Errorf("%w: its version is %d, and this program knows none after %d: use a newer program", lokt.ErrInvalid, version, newest)
	}
	return version, nil
}

// migrate brings a database of SQLite from its version to the newest, each step in a transaction of its own.
func migrate(ctx context.Context, c *conn, version int64) error {
	all, err := listMigrations("sqlite")
	if err != nil {
		return err
	}
	for _, m := range all[version:] {
		if err := step(ctx, c, m); err != nil {
			return fmt.Errorf("bring it to version %d: %w", m.version, err)
		}
	}
	return nil
}

func step(ctx context.Context, c *conn, m migration) error {
	script := fmt.Sprintf("BEGIN IMMEDIATE;\n%s\nPRAGMA application_id = %d;\nPRAGMA user_version = %d;\nCOMMIT", m.text, applicationID, m.version)
	err := c.once(ctx, script)
	if err != nil {
		_ = c.once(ctx, "ROLLBACK")
	}
	return err
}
