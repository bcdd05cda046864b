-- Version 1. Times of locks are nanoseconds since 1970, UTC, and spans nanoseconds; those of jobs are milliseconds.
-- The views at the end are for people.

-- One row: counters that never fall. clock is the time of the last change; tokens and revisions of locks that have no row,
-- or a lower number there, start from the floors.
CREATE TABLE state (
	id             BIGINT PRIMARY KEY CHECK (id = 1),
	clock          BIGINT NOT NULL DEFAULT 0,
	lock_event     BIGINT NOT NULL DEFAULT 0,
	token_floor    BIGINT NOT NULL DEFAULT 0,
	revision_floor BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO state (id) VALUES (1);

-- Whoever runs a turn of the scheduler locks this row. changes is the number of the last row of job_changes.
CREATE TABLE job_state (
	id           BIGINT PRIMARY KEY CHECK (id = 1),
	job_seq      BIGINT NOT NULL DEFAULT 0,
	job_revision BIGINT NOT NULL DEFAULT 0,
	job_event    BIGINT NOT NULL DEFAULT 0,
	job_clock    BIGINT NOT NULL DEFAULT 0,
	changes      BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO job_state (id) VALUES (1);

-- What turns changed, for the other servers to follow; the oldest are forgotten.
CREATE TABLE job_changes (
	seq    BIGINT PRIMARY KEY,
	origin TEXT NOT NULL,
	at     BIGINT NOT NULL,
	body   TEXT NOT NULL
);
ALTER TABLE job_changes ALTER COLUMN body SET STORAGE EXTERNAL; -- it is read at once or never: not worth compressing

-- Every name that was ever locked: a free lock keeps its token.
CREATE TABLE locks (
	name     TEXT COLLATE "C" PRIMARY KEY,
	revision BIGINT NOT NULL,
	token    BIGINT NOT NULL,
	changed  BIGINT NOT NULL
) WITH (fillfactor = 50);

-- place orders the holders of a lock, and the waiters. claim holds what has no column, as JSON.
CREATE TABLE holders (
	lock        TEXT COLLATE "C" NOT NULL,
	lease_id    TEXT NOT NULL,
	place       BIGINT NOT NULL,
	owner       TEXT NOT NULL,
	session     TEXT,
	host        TEXT,
	token       BIGINT NOT NULL,
	held_since  BIGINT,
	acquired_at BIGINT,
	expires_at  BIGINT,
	ttl         BIGINT,
	max_hold    BIGINT,
	renewals    BIGINT NOT NULL,
	pending     BIGINT,
	yield       TEXT,
	claim       TEXT NOT NULL,
	PRIMARY KEY (lock, lease_id)
) WITH (fillfactor = 50);

CREATE TABLE waiters (
	lock     TEXT COLLATE "C" NOT NULL,
	lease_id TEXT NOT NULL,
	place    BIGINT NOT NULL,
	owner    TEXT NOT NULL,
	session  TEXT,
	host     TEXT,
	priority BIGINT NOT NULL,
	since    BIGINT,
	until    BIGINT,
	ttl      BIGINT,
	max_hold BIGINT,
	claim    TEXT NOT NULL,
	PRIMARY KEY (lock, lease_id)
) WITH (fillfactor = 50);

CREATE TABLE freezes (
	lock       TEXT COLLATE "C" PRIMARY KEY,
	id         TEXT NOT NULL,
	owner      TEXT NOT NULL,
	session    TEXT,
	host       TEXT,
	reason     TEXT,
	frozen_at  BIGINT,
	ttl        BIGINT,
	expires_at BIGINT,
	detail     TEXT NOT NULL
);

CREATE TABLE lock_events (
	seq      BIGINT PRIMARY KEY,
	at       BIGINT,
	type     TEXT NOT NULL,
	lock     TEXT COLLATE "C" NOT NULL,
	lease_id TEXT,
	owner    TEXT,
	session  TEXT,
	host     TEXT,
	token    BIGINT,
	ttl      BIGINT,
	expires  BIGINT,
	detail   TEXT
);
CREATE INDEX lock_events_lock ON lock_events (lock, seq);

-- Jobs that have not ended. What never changes is in specs, what workers report in outputs.
CREATE TABLE jobs (
	seq        BIGINT PRIMARY KEY,
	state      TEXT NOT NULL,
	lease_id   TEXT,
	updated_at BIGINT,
	ready_at   BIGINT,
	started_at BIGINT,
	attempt    BIGINT NOT NULL,
	token      BIGINT NOT NULL,
	code       TEXT,
	cancel     BIGINT NOT NULL,
	reason     TEXT,
	ord        BIGINT NOT NULL,
	revision   BIGINT NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE specs (
	seq             BIGINT PRIMARY KEY,
	id              TEXT NOT NULL UNIQUE,
	type            TEXT NOT NULL,
	priority        TEXT NOT NULL,
	units           BIGINT NOT NULL,
	only_one        BIGINT NOT NULL,
	payload         TEXT,
	idempotency_key TEXT,
	tags            TEXT,
	max_runtime     BIGINT,
	max_attempts    BIGINT NOT NULL,
	retry_backoff   BIGINT,
	run_at          BIGINT,
	locks           TEXT,
	created_at      BIGINT
);

CREATE TABLE outputs (
	seq        BIGINT PRIMARY KEY,
	progress   DOUBLE PRECISION,
	message    TEXT,
	metrics    TEXT,
	checkpoint TEXT,
	result     TEXT,
	error      TEXT
);

CREATE TABLE leases (
	id         TEXT PRIMARY KEY,
	job        TEXT NOT NULL,
	worker     TEXT NOT NULL,
	request    TEXT,
	units      BIGINT NOT NULL,
	token      BIGINT NOT NULL,
	attempt    BIGINT NOT NULL,
	issued     BIGINT,
	expires    BIGINT,
	last_beat  BIGINT,
	first_beat BIGINT,
	run_until  BIGINT,
	ttl        BIGINT,
	beat_every BIGINT
) WITH (fillfactor = 50);

CREATE TABLE attempts (
	job        TEXT NOT NULL,
	number     BIGINT NOT NULL,
	token      BIGINT NOT NULL,
	lease_id   TEXT NOT NULL,
	worker     TEXT NOT NULL,
	units      BIGINT NOT NULL,
	state      TEXT NOT NULL,
	code       TEXT,
	issued     BIGINT,
	first_beat BIGINT,
	ended      BIGINT,
	error      TEXT,
	PRIMARY KEY (job, number)
);

-- Jobs that ended, by the revision of their end.
CREATE TABLE ended (
	revision   BIGINT PRIMARY KEY,
	seq        BIGINT NOT NULL,
	state      TEXT NOT NULL,
	updated_at BIGINT,
	ready_at   BIGINT,
	started_at BIGINT,
	ended_at   BIGINT,
	attempt    BIGINT NOT NULL,
	token      BIGINT NOT NULL,
	code       TEXT,
	cancel     BIGINT NOT NULL,
	reason     TEXT,
	ord        BIGINT NOT NULL
);
CREATE INDEX ended_seq ON ended (seq);

CREATE TABLE idempotency_keys (
	key     TEXT PRIMARY KEY,
	print   BYTEA NOT NULL,
	job     TEXT NOT NULL,
	state   TEXT,
	expires BIGINT
);

CREATE TABLE answered (
	worker  TEXT NOT NULL,
	request TEXT NOT NULL,
	lease   TEXT NOT NULL,
	expires BIGINT,
	PRIMARY KEY (worker, request)
);

CREATE TABLE frozen_types (
	type TEXT PRIMARY KEY
);

CREATE TABLE job_events (
	seq      BIGINT PRIMARY KEY,
	at       BIGINT,
	type     TEXT NOT NULL,
	job      TEXT,
	lease_id TEXT,
	worker   TEXT,
	attempt  BIGINT,
	token    BIGINT,
	code     TEXT,
	reason   TEXT
);

-- Statistics by hour (milliseconds since 1970). What a turn adds is kept in stats_new until it is added up.
CREATE TABLE tallies (
	hour BIGINT NOT NULL,
	type TEXT NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (hour, type)
);

CREATE TABLE counts (
	hour  BIGINT NOT NULL,
	event TEXT NOT NULL,
	tag   TEXT NOT NULL,
	n     BIGINT NOT NULL,
	PRIMARY KEY (hour, event, tag)
);

CREATE TABLE stats_new (
	id   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	hour BIGINT NOT NULL,
	body TEXT NOT NULL
);

ALTER TABLE holders SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE waiters SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE jobs SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE leases SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE state SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE job_state SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE job_changes SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE stats_new SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

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
		to_timestamp(l.changed / 1e9) AS changed
	FROM locks l;

CREATE VIEW holder_list AS
	SELECT h.lock, h.owner, h.session, h.host, h.token, h.lease_id, h.ttl / 1000000 AS ttl_ms, h.renewals,
		to_timestamp(h.held_since / 1e9) AS held_since, to_timestamp(h.acquired_at / 1e9) AS renewed, to_timestamp(h.expires_at / 1e9) AS expires
	FROM holders h ORDER BY h.lock, h.place;

CREATE VIEW queue_list AS
	SELECT w.lock, w.owner, w.session, w.host, w.priority, w.lease_id, to_timestamp(w.since / 1e9) AS since, to_timestamp(w.until / 1e9) AS until
	FROM waiters w ORDER BY w.lock, w.place;

CREATE VIEW event_list AS
	SELECT e.seq, to_timestamp(e.at / 1e9) AS at, e.type, e.lock, e.owner, e.host, e.token, e.lease_id, e.detail
	FROM lock_events e ORDER BY e.seq;

CREATE VIEW job_list AS
	SELECT s.id, s.type, j.state, s.priority, s.units, j.attempt, s.max_attempts, l.worker, j.lease_id,
		to_timestamp(s.created_at / 1e3) AS created, to_timestamp(j.updated_at / 1e3) AS updated
	FROM jobs j JOIN specs s USING (seq) LEFT JOIN leases l ON l.id = j.lease_id ORDER BY j.ord, j.seq;
