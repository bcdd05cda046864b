package place

import (
	"context"
	"fmt"
	"time"
)

// patience is how long a database has to answer.
const patience = 2 * time.Second

// Memory is a store in the memory of the process.
func Memory(context.Context) []Condition {
	return []Condition{Found("store", Warn, "the store is the memory of the process",
		"when the server ends nobody holds anything any more, jobs and queues are gone, and tokens begin anew",
		"use sqlite:PATH, postgres://… or etcd://… for what must outlive it")}
}

// Ready says whether a server can store anything at the moment.
func Ready(is bool) Condition {
	if is {
		return holds("ready", "the server's store answers, and takes changes")
	}
	return Found("ready", Fail, "the server's store does not answer, or takes no changes", "requests are answered as unavailable",
		"see the server's log: its disk may be full, its database out of reach, or it is about to end")
}

// Postgres is a database of PostgreSQL. query reads one row.
func Postgres(query func(ctx context.Context, sql string, to ...any) error) Ask {
	return func(ctx context.Context) []Condition {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		var fsync, pages, level, sync, delay string
		var copies int
		if err := query(ctx, `SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
			current_setting('synchronous_standby_names'), current_setting('wal_writer_delay'), (SELECT count(*) FROM pg_stat_replication)`,
			&fsync, &pages, &level, &sync, &delay, &copies); err != nil {
			unknown := func(name string) Condition {
				return Found(name, Unknown, "the database did not say how it is set", "what was acknowledged is gone after a crash, or a failover",
					"see the server's log")
			}
			return []Condition{unknown("database-disk"), unknown("commit"), unknown("standbys")}
		}
		all := []Condition{
			holds("database-disk", "fsync and full_page_writes are on; what the disk itself does cannot be seen"),
			holds("commit", "synchronous_commit is "+level), holds("standbys", "none: the database's own disk has all there is"),
		}
		if fsync != "on" || pages != "on" {
			all[0] = Found("database-disk", Warn, fmt.Sprintf("fsync is %s, and full_page_writes %s", fsync, pages),
				"when the database's host crashes, what was acknowledged may be gone and the rest damaged: two may hold a lock, and tokens fall",
				"set both to on in postgresql.conf")
		}
		if level == "off" {
			all[1] = Found("commit", Warn, "synchronous_commit is off",
				"a crash of PostgreSQL takes along what was acknowledged in the last moments (three times wal_writer_delay, which is "+delay+
					"): a lock is then another's, under a token that was given before", "set it to on for the role or the database of lokt")
		}
		waits := sync != "" && level != "off" && level != "local"
		if copies > 0 || sync != "" {
			all[2] = holds("standbys", fmt.Sprintf("connected: %d; a commit waits for %q", copies, sync))
		}
		if copies > 0 && !waits {
			all[2] = Found("standbys", Warn, fmt.Sprintf("connected: %d, and a commit waits for none", copies),
				"a failover takes along what had not arrived: two may hold a lock, and tokens fall if no daemon goes on that ran before",
				"set synchronous_standby_names, and synchronous_commit to on")
		}
		return all
	}
}
