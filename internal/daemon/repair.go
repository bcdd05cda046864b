package daemon

import (
	"context"
	"fmt"
	"os"

	"github.com/lokt-dev/lokt/store/sqlstore"
)

// runRepair sets rows that cannot be read aside, so that a store that cannot be opened because of them can be.
func runRepair(ctx context.Context, s Streams, c *Config, args []string, _ any) error {
	if len(args) != 1 {
		return usagef("say into which new file to put what is damaged: loktd repair FILE")
	}
	path, _, ok := sqlstore.File(c.Store)
	if !ok {
		return usagef("%s is no database of SQLite, and only these have rows to be set aside", redact(c.Store))
	}
	if _, err := os.Lstat(args[0]); err == nil {
		return fmt.Errorf("%s is there already: name a file that is not", args[0])
	}
	if !exists(path) {
		return fmt.Errorf("nothing to repair: there is no %s; name the database with --store", path)
	}
	all, err := sqlstore.SetAside(ctx, c.Store, args[0], sqlstore.Options{Describe: "being repaired"})
	if len(all) == 0 {
		if err == nil {
			fmt.Fprintf(s.Out, "%s: no row of a journal is damaged; nothing was changed\n", redact(c.Store))
		}
		return err
	}
	log := c.logger(s.Err)
	for i := range all {
		a := &all[i]
		log.Warn("set aside", "table", a.Table, "row", a.Row, "damaged", a.Damaged, "bytes", len(a.Body), "file", args[0],
			"submitted", a.Submitted, "changed", a.Changed, "ended", a.Ended)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "%s: %d rows are set aside, in %s, and what they said is lost; it can be opened now\n", redact(c.Store), len(all), args[0])
	return nil
}
