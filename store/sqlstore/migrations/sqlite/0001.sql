-- Version 1. Times of locks are nanoseconds since 1970, UTC, and spans nanoseconds; those of jobs are milliseconds.
-- The views at the end are for people.

-- One row: counters that never fall. clock is the time of the last change; tokens and revisions of locks that have no row,
-- or a lower number there, start from the floors; a backup says so, until it is opened.
CREATE TABLE state (
	id             INTEGER PRIMARY KEY CHECK (id = 1),
	clock          INTEGER NOT NULL DEFAULT 0,
	lock_event     INTEGER NOT NULL DEFAULT 0,
	token_floor    INTEGER NOT NULL DEFAULT 0,
	revision_floor INTEGER NOT NULL DEFAULT 0,
	backup         INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO state (id) VALUES (1);
CREATE TABLE job_state (
	id           INTEGER PRIMARY KEY CHECK (id = 1),
	job_seq      INTEGER NOT NULL DEFAULT 0,
	job_revision INTEGER NOT NULL DEFAULT 0,
	job_event    INTEGER NOT NULL DEFAULT 0,
	job_clock    INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO job_state (id) VALUES (1);

-- Every name that was ever locked: a free lock keeps its token.
CREATE TABLE locks (
	name     TEXT PRIMARY KEY,
	revision INTEGER NOT NULL,
	token    INTEGER NOT NULL,
	changed  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- place orders the holders of a lock, and the waiters. claim holds what has no column, as JSON.
CREATE TABLE holders (
	lock        TEXT NOT NULL,
	lease_id    TEXT NOT NULL,
	place       INTEGER NOT NULL,
	owner       TEXT NOT NULL,
	session     TEXT,
	host        TEXT,
	token       INTEGER NOT NULL,
	held_since  INTEGER,
	acquired_at INTEGER,
	expires_at  INTEGER,
	ttl         INTEGER,
	max_hold    INTEGER,
	renewals    INTEGER NOT NULL,
	pending     INTEGER,
	yield       TEXT,
	claim       TEXT NOT NULL,
	PRIMARY KEY (lock, lease_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE waiters (
	lock     TEXT NOT NULL,
	lease_id TEXT NOT NULL,
	place    INTEGER NOT NULL,
	owner    TEXT NOT NULL,
	session  TEXT,
	host     TEXT,
	priority INTEGER NOT NULL,
	since    INTEGER,
	until    INTEGER,
	ttl      INTEGER,
	max_hold INTEGER,
	claim    TEXT NOT NULL,
	PRIMARY KEY (lock, lease_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE freezes (
	lock       TEXT PRIMARY KEY,
	id         TEXT NOT NULL,
	owner      TEXT NOT NULL,
	session    TEXT,
	host       TEXT,
	reason     TEXT,
	frozen_at  INTEGER,
	ttl        INTEGER,
	expires_at INTEGER,
	detail     TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE lock_events (
	seq      INTEGER PRIMARY KEY,
	at       INTEGER,
	type     TEXT NOT NULL,
	lock     TEXT NOT NULL,
	lease_id TEXT,
	owner    TEXT,
	session  TEXT,
	host     TEXT,
	token    INTEGER,
	ttl      INTEGER,
	expires  INTEGER,
	detail   TEXT
) STRICT;
CREATE INDEX lock_events_lock ON lock_events (lock);

-- Jobs that have not ended. What never changes is in specs, what workers report in outputs.
CREATE TABLE jobs (
	seq        INTEGER PRIMARY KEY,
	state      TEXT NOT NULL,
	lease_id   TEXT,
	updated_at INTEGER,
	ready_at   INTEGER,
	started_at INTEGER,
	attempt    INTEGER NOT NULL,
	token      INTEGER NOT NULL,
	code       TEXT,
	cancel     INTEGER NOT NULL,
	reason     TEXT,
	ord        INTEGER NOT NULL,
	revision   INTEGER NOT NULL
) STRICT;

CREATE TABLE specs (
	seq             INTEGER PRIMARY KEY,
	id              TEXT NOT NULL UNIQUE,
	type            TEXT NOT NULL,
	priority        TEXT NOT NULL,
	units           INTEGER NOT NULL,
	only_one        INTEGER NOT NULL,
	payload         TEXT,
	idempotency_key TEXT,
	tags            TEXT,
	max_runtime     INTEGER,
	max_attempts    INTEGER NOT NULL,
	retry_backoff   INTEGER,
	run_at          INTEGER,
	locks           TEXT,
	created_at      INTEGER
) STRICT;

CREATE TABLE outputs (
	seq        INTEGER PRIMARY KEY,
	progress   REAL,
	message    TEXT,
	metrics    TEXT,
	checkpoint TEXT,
	result     TEXT,
	error      TEXT
) STRICT;

CREATE TABLE leases (
	id         TEXT PRIMARY KEY,
	job        TEXT NOT NULL,
	worker     TEXT NOT NULL,
	request    TEXT,
	units      INTEGER NOT NULL,
	token      INTEGER NOT NULL,
	attempt    INTEGER NOT NULL,
	issued     INTEGER,
	expires    INTEGER,
	last_beat  INTEGER,
	first_beat INTEGER,
	run_until  INTEGER,
	ttl        INTEGER,
	beat_every INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
	job        TEXT NOT NULL,
	number     INTEGER NOT NULL,
	token      INTEGER NOT NULL,
	lease_id   TEXT NOT NULL,
	worker     TEXT NOT NULL,
	units      INTEGER NOT NULL,
	state      TEXT NOT NULL,
	code       TEXT,
	issued     INTEGER,
	first_beat INTEGER,
	ended      INTEGER,
	error      TEXT,
	PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;

-- Jobs that ended, by the revision of their end.
CREATE TABLE ended (
	revision   INTEGER PRIMARY KEY,
	seq        INTEGER NOT NULL,
	state      TEXT NOT NULL,
	updated_at INTEGER,
	ready_at   INTEGER,
	started_at INTEGER,
	ended_at   INTEGER,
	attempt    INTEGER NOT NULL,
	token      INTEGER NOT NULL,
	code       TEXT,
	cancel     INTEGER NOT NULL,
	reason     TEXT,
	ord        INTEGER NOT NULL
) STRICT;
CREATE INDEX ended_seq ON ended (seq);

CREATE TABLE idempotency_keys (
	key     TEXT PRIMARY KEY,
	print   BLOB NOT NULL,
	job     TEXT NOT NULL,
	state   TEXT,
	expires INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE answered (
	worker  TEXT NOT NULL,
	request TEXT NOT NULL,
	lease   TEXT NOT NULL,
	expires INTEGER,
	PRIMARY KEY (worker, request)
) STRICT, WITHOUT ROWID;

CREATE TABLE frozen_types (
	type TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE job_events (
	seq      INTEGER PRIMARY KEY,
	at       INTEGER,
	type     TEXT NOT NULL,
	job      TEXT,
	lease_id TEXT,
	worker   TEXT,
	attempt  INTEGER,
	token    INTEGER,
	code     TEXT,
	reason   TEXT
) STRICT;

-- Statistics by hour (milliseconds since 1970). What a turn adds is kept in stats_new until it is added up.
CREATE TABLE tallies (
	hour INTEGER NOT NULL,
	type TEXT NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (hour, type)
) STRICT, WITHOUT ROWID;

CREATE TABLE counts (
	hour  INTEGER NOT NULL,
	event TEXT NOT NULL,
	tag   TEXT NOT NULL,
	n     INTEGER NOT NULL,
	PRIMARY KEY (hour, event, tag)
) STRICT, WITHOUT ROWID;

CREATE TABLE stats_new (
	id   INTEGER PRIMARY KEY,
	hour INTEGER NOT NULL,
	body TEXT NOT NULL
) STRICT;

CREATE VIEW lock_list AS
	SELECT l.name,
		CASE
			WHEN EXISTS (SELECT 1 FROM freezes f WHERE f.lock = l.name) THEN 'frozen'
			WHEN EXISTS (SELECT 1 FROM holders h WHERE h.lock = l.name) THEN 'held'
			WHEN EXISTS (SELECT 1 FROM waiters w WHERE w.lock = l.name) THEN 'awaited'
			ELSE 'free'
		END AS state,
		l.token, l.revision,
		(SELECT count(*) FROM holders h WHERE h.lock = l.name) AS holders,
		(SELECT count(*) FROM waiters w WHERE w.lock = l.name) AS waiters,
		strftime('%Y-%m-%dT%H:%M:%fZ', l.changed / 1e9, 'unixepoch') AS changed
	FROM locks l;

CREATE VIEW holder_list AS
	SELECT h.lock, h.owner, h.session, h.host, h.token, h.lease_id, h.ttl / 1000000 AS ttl_ms, h.renewals,
		strftime('%Y-%m-%dT%H:%M:%fZ', h.held_since / 1e9, 'unixepoch') AS held_since,
		strftime('%Y-%m-%dT%H:%M:%fZ', h.acquired_at / 1e9, 'unixepoch') AS renewed,
		strftime('%Y-%m-%dT%H:%M:%fZ', h.expires_at / 1e9, 'unixepoch') AS expires
	FROM holders h ORDER BY h.lock, h.place;

CREATE VIEW queue_list AS
	SELECT w.lock, w.owner, w.session, w.host, w.priority, w.lease_id,
		strftime('%Y-%m-%dT%H:%M:%fZ', w.since / 1e9, 'unixepoch') AS since,
		strftime('%Y-%m-%dT%H:%M:%fZ', w.until / 1e9, 'unixepoch') AS until
	FROM waiters w ORDER BY w.lock, w.place;

CREATE VIEW event_list AS
	SELECT e.seq, strftime('%Y-%m-%dT%H:%M:%fZ', e.at / 1e9, 'unixepoch') AS at, e.type, e.lock, e.owner, e.host, e.token, e.lease_id, e.detail
	FROM lock_events e ORDER BY e.seq;

CREATE VIEW job_list AS
	SELECT s.id, s.type, j.state, s.priority, s.units, j.attempt, s.max_attempts, l.worker, j.lease_id,
		strftime('%Y-%m-%dT%H:%M:%fZ', s.created_at / 1e3, 'unixepoch') AS created,
		strftime('%Y-%m-%dT%H:%M:%fZ', j.updated_at / 1e3, 'unixepoch') AS updated
	FROM jobs j JOIN specs s USING (seq) LEFT JOIN leases l ON l.id = j.lease_id ORDER BY j.ord, j.seq;
