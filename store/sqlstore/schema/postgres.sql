-- Schema 1 of PostgreSQL. A document is JSON as text, with the checksum of what lokt wrote in sum; other columns are copies of
-- what is in it, for queries. Times are nanoseconds since 1970. The views at the end are for people.

CREATE TABLE lokt_schema (version BIGINT NOT NULL);
INSERT INTO lokt_schema VALUES (1);

-- One row. clock is when somebody last said that the database is in use; nothing has a lower token or revision than the floors.
-- numbered are the transactions that had been seen when events were numbered last.
CREATE TABLE state (
	id             BIGINT PRIMARY KEY CHECK (id = 1),
	clock          BIGINT NOT NULL DEFAULT 0,
	token_floor    BIGINT NOT NULL DEFAULT 0,
	revision_floor BIGINT NOT NULL DEFAULT 0,
	lock_event     BIGINT NOT NULL DEFAULT 0,
	numbered       pg_snapshot
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO state (id) VALUES (1);

-- A free lock keeps its token, for an hour at least. doc has everything but the queue; it is empty before the first change.
CREATE TABLE locks (
	name     TEXT COLLATE "C" PRIMARY KEY,
	revision BIGINT NOT NULL,
	token    BIGINT NOT NULL,
	changed  BIGINT NOT NULL DEFAULT 0,
	waiting  BIGINT NOT NULL DEFAULT 0,
	free     BOOLEAN NOT NULL DEFAULT true,
	doc      TEXT NOT NULL DEFAULT '',
	sum      BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX locks_used ON locks (name) WHERE NOT free;

-- Who waits: rows of their own, so that a change of a lock writes those who came, changed or left.
CREATE TABLE waiters (
	lock     TEXT COLLATE "C" NOT NULL,
	lease_id TEXT COLLATE "C" NOT NULL,
	doc      TEXT NOT NULL,
	sum      BIGINT NOT NULL,
	PRIMARY KEY (lock, lease_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The events of a change: a JSON array. first and last are the numbers, since and until the times, of the first and the last of them.
CREATE TABLE lock_events (
	first BIGINT PRIMARY KEY,
	last  BIGINT NOT NULL,
	since BIGINT NOT NULL,
	until BIGINT NOT NULL,
	lock  TEXT COLLATE "C" NOT NULL,
	doc   TEXT NOT NULL,
	sum   BIGINT NOT NULL
);
CREATE INDEX lock_events_lock ON lock_events (lock, first);

-- Events of n that have no number yet. Those of a lock are in the order of their ids, and none can be seen before those before it: who
-- changes a lock has it locked until the transaction has ended.
CREATE TABLE lock_events_new (
	xid   xid8 NOT NULL DEFAULT pg_current_xact_id(),
	id    BIGINT GENERATED ALWAYS AS IDENTITY,
	n     BIGINT NOT NULL,
	since BIGINT NOT NULL,
	until BIGINT NOT NULL,
	lock  TEXT COLLATE "C" NOT NULL,
	doc   TEXT NOT NULL,
	sum   BIGINT NOT NULL,
	PRIMARY KEY (xid, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Tells whether there are events without a number. Only transactions that had not been seen are looked at: somebody's long transaction
-- keeps rows from being cleaned away, and there may be millions that have got their numbers.
CREATE FUNCTION has_new_lock_events() RETURNS BOOLEAN
	LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $$
DECLARE
	earlier pg_snapshot;
	after xid8 := '0';
	other xid8[] := '{}';
BEGIN
	SELECT numbered INTO earlier FROM state;
	IF pg_snapshot_xmax(earlier) <= pg_snapshot_xmax(pg_current_snapshot()) THEN -- or it is of another cluster
		after := pg_snapshot_xmax(earlier);
		other := ARRAY(SELECT pg_snapshot_xip(earlier));
	END IF;
	RETURN EXISTS (SELECT 1 FROM lock_events_new WHERE xid >= after)
		OR EXISTS (SELECT 1 FROM lock_events_new WHERE xid = ANY (other));
END
$$;

-- Numbers the events that have none: those of transactions that had not been seen, or all.
CREATE FUNCTION number_lock_events(everything BOOLEAN) RETURNS BIGINT
	LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
	base BIGINT;
	earlier pg_snapshot;
	after xid8 := '0';
	other xid8[] := '{}';
	more BIGINT;
BEGIN
	SELECT lock_event, numbered INTO base, earlier FROM state FOR UPDATE;
	IF NOT everything AND pg_snapshot_xmax(earlier) <= pg_snapshot_xmax(pg_current_snapshot()) THEN
		after := pg_snapshot_xmax(earlier);
		other := ARRAY(SELECT pg_snapshot_xip(earlier));
	END IF;
	WITH these AS (
		DELETE FROM lock_events_new WHERE xid >= after OR xid = ANY (other) RETURNING *
	), moved AS (
		INSERT INTO lock_events (first, last, since, until, lock, doc, sum)
		SELECT base + 1 + sum(n) OVER (ORDER BY id) - n, base + sum(n) OVER (ORDER BY id), t.since, until, lock, doc, t.sum FROM these t
		RETURNING last
	)
	SELECT coalesce(max(last), base) - base, pg_current_snapshot() INTO more, earlier FROM moved;
	IF more > 0 OR everything THEN
		UPDATE state SET lock_event = base + more, numbered = earlier;
	END IF;
	RETURN more;
END
$$;

-- Whoever runs a turn of the scheduler locks this row, which never changes: the versions of a row that every turn changed would all have
-- to be looked at while somebody's long transaction keeps them from being cleaned away.
CREATE TABLE job_state (id BIGINT PRIMARY KEY CHECK (id = 1));
INSERT INTO job_state (id) VALUES (1);

-- The last turns: which jobs and memos each wrote, for the other servers to follow, and what is counted. The last one's is what counts.
-- writer is a turn's own name.
CREATE TABLE turns (
	turn     BIGINT PRIMARY KEY,
	writer   TEXT NOT NULL,
	jobs     TEXT[] NOT NULL,
	memos    TEXT[] NOT NULL,
	seq      BIGINT NOT NULL DEFAULT 0,
	revision BIGINT NOT NULL DEFAULT 0,
	event    BIGINT NOT NULL DEFAULT 0,
	clock    BIGINT NOT NULL DEFAULT 0,
	frozen   TEXT NOT NULL DEFAULT '[]'
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 4000);
INSERT INTO turns (turn, writer, jobs, memos) VALUES (0, '', '{}', '{}');

-- doc has everything but the payload, which never changes. While the job lives revision and ended_at are NULL, and state is empty: no
-- index is on what changes until it ends, also no index that would not have its row.
CREATE TABLE jobs (
	id       TEXT COLLATE "C" PRIMARY KEY,
	seq      BIGINT NOT NULL,
	revision BIGINT,
	state    TEXT NOT NULL,
	type     TEXT NOT NULL,
	ended_at BIGINT,
	doc      TEXT NOT NULL,
	sum      BIGINT NOT NULL,
	payload  TEXT NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX jobs_living ON jobs (seq) WHERE ended_at IS NULL;
CREATE INDEX jobs_ended ON jobs (revision) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_ended_type ON jobs (type, revision) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_ended_state ON jobs (state, revision) WHERE ended_at IS NOT NULL;
CREATE VIEW living AS SELECT * FROM jobs WHERE ended_at IS NULL;
CREATE VIEW ended AS SELECT * FROM jobs WHERE ended_at IS NOT NULL;

-- A piece of what a job's workers print, by the offset at which it ends.
CREATE TABLE output (
	job   TEXT COLLATE "C" NOT NULL REFERENCES jobs ON DELETE CASCADE,
	until BIGINT NOT NULL,
	doc   TEXT NOT NULL,
	sum   BIGINT NOT NULL,
	PRIMARY KEY (job, until)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- As jobs.KeptOutput and jobs.KeptPieces say.
CREATE FUNCTION keep_output() RETURNS TRIGGER
	LANGUAGE plpgsql SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
	DELETE FROM output o USING (SELECT a.job, -- the bound once for each job, and not for each of its pieces
			greatest((SELECT max(until) FROM output m WHERE m.job = a.job) - 65536,
				(SELECT until FROM output k WHERE k.job = a.job ORDER BY until DESC LIMIT 1 OFFSET 1000)) AS bound FROM added a GROUP BY a.job) n
		WHERE o.job = n.job AND o.until <= n.bound;
	RETURN NULL;
END
$$;
CREATE TRIGGER output_kept AFTER INSERT ON output
	REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION keep_output();

CREATE TABLE memos (
	id      TEXT COLLATE "C" PRIMARY KEY,
	expires BIGINT,
	doc     TEXT NOT NULL,
	sum     BIGINT NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX memos_expires ON memos (expires) WHERE expires IS NOT NULL;

CREATE TABLE statistics (
	hour   BIGINT NOT NULL,
	source TEXT NOT NULL,
	type   TEXT NOT NULL,
	tag    TEXT NOT NULL,
	doc    TEXT NOT NULL,
	sum    BIGINT NOT NULL,
	PRIMARY KEY (hour, source, type, tag)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The events of a turn: a JSON array. first and last are their numbers, until is the time of the last one.
CREATE TABLE job_events (
	first BIGINT PRIMARY KEY,
	last  BIGINT NOT NULL,
	until BIGINT NOT NULL,
	doc   TEXT NOT NULL,
	sum   BIGINT NOT NULL
);

-- A document for people to look into: PostgreSQL looks into none in which there is a NUL.
CREATE FUNCTION plain(doc TEXT) RETURNS JSON LANGUAGE sql IMMUTABLE AS $$ SELECT replace(doc, E'\\u0000', E'\\ufffd')::json $$;

CREATE VIEW lock_list AS
	SELECT l.name,
		CASE
			WHEN plain(l.doc) -> 'freeze' IS NOT NULL THEN 'frozen'
			WHEN json_array_length(plain(l.doc) -> 'holders') > 0 THEN 'held'
			WHEN NOT l.free THEN 'awaited'
			ELSE 'free'
		END AS state,
		l.token, l.revision,
		json_array_length(plain(l.doc) -> 'holders') AS holders,
		l.waiting AS waiters,
		to_timestamp(l.changed / 1e9) AS changed
	FROM locks l WHERE l.doc <> '' ORDER BY l.name;

CREATE VIEW holder_list AS
	SELECT l.name AS lock, h -> 'owner' ->> 'id' AS owner, h -> 'owner' ->> 'session' AS session, h -> 'owner' ->> 'host' AS host,
		(h ->> 'token')::numeric AS token, h ->> 'lease_id' AS lease_id, (h ->> 'ttl_ms')::numeric AS ttl_ms, h ->> 'held_since' AS held_since,
		h ->> 'acquired_at' AS renewed, h ->> 'expires_at' AS expires
	FROM locks l, json_array_elements(plain(l.doc) -> 'holders') h WHERE NOT l.free ORDER BY l.name;

CREATE VIEW queue_list AS
	SELECT w.lock, plain(w.doc) -> 'owner' ->> 'id' AS owner, plain(w.doc) -> 'owner' ->> 'session' AS session, plain(w.doc) -> 'owner' ->> 'host' AS host,
		coalesce((plain(w.doc) ->> 'priority')::bigint, 0) AS priority, w.lease_id, plain(w.doc) ->> 'since' AS since, plain(w.doc) ->> 'until' AS until
	FROM waiters w ORDER BY w.lock, priority DESC, (plain(w.doc) ->> 'place')::bigint;

CREATE VIEW event_list AS
	SELECT e.first + v.place - 1 AS seq, v.event ->> 'time' AS at, v.event ->> 'type' AS type, e.lock, v.event -> 'owner' ->> 'id' AS owner,
		v.event -> 'owner' ->> 'host' AS host, (v.event ->> 'token')::numeric AS token, v.event ->> 'lease_id' AS lease_id, v.event -> 'extra' AS extra
	FROM lock_events e, json_array_elements(plain(e.doc)) WITH ORDINALITY v (event, place) ORDER BY 1;

CREATE VIEW job_list AS
	SELECT j.id, j.type, plain(j.doc) ->> 'state' AS state, j.seq, (plain(j.doc) ->> 'revision')::bigint AS revision, to_timestamp(j.ended_at / 1e9) AS ended, j.doc, j.payload
	FROM jobs j ORDER BY j.ended_at IS NOT NULL, j.seq;
