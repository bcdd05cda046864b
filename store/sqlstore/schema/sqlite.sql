-- Documents are in lokt's one JSON form. The sum of a row is the CRC-32C of its key, its document and its payload.

CREATE TABLE state (
	id INTEGER PRIMARY KEY CHECK (id = 1),
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL
);

-- A lock that is not free, without its queue.
CREATE TABLE locks (
	name TEXT NOT NULL PRIMARY KEY,
	waiting INTEGER NOT NULL, -- how many
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE waiters (
	lock TEXT NOT NULL,
	lease_id TEXT NOT NULL,
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL,
	PRIMARY KEY (lock, lease_id)
) WITHOUT ROWID;

-- The events of the changes that one transaction made to locks.
CREATE TABLE lock_events (
	first INTEGER PRIMARY KEY, -- number of the first
	last INTEGER NOT NULL,
	since INTEGER NOT NULL, -- time of the earliest, in nanoseconds
	until INTEGER NOT NULL, -- of the latest
	locks TEXT NOT NULL, -- their names, each between spaces
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL
);

-- Jobs that have not ended. Small payloads are here, large ones in a table of their own, where no change of the job writes
-- them again.
CREATE TABLE living (
	seq INTEGER PRIMARY KEY,
	id TEXT NOT NULL,
	doc TEXT NOT NULL,
	payload TEXT,
	sum INTEGER NOT NULL
);

CREATE TABLE ended (
	revision INTEGER PRIMARY KEY,
	seq INTEGER NOT NULL,
	id TEXT NOT NULL UNIQUE,
	state TEXT NOT NULL,
	type TEXT NOT NULL,
	ended_at INTEGER,
	doc TEXT NOT NULL,
	payload TEXT,
	sum INTEGER NOT NULL
);

CREATE INDEX ended_type ON ended (type);
CREATE INDEX ended_type_state ON ended (type, state);
CREATE INDEX ended_state ON ended (state);

CREATE TABLE payloads (
	seq INTEGER PRIMARY KEY,
	payload TEXT NOT NULL
);

CREATE TRIGGER ended_forgotten AFTER DELETE ON ended BEGIN
	DELETE FROM payloads WHERE seq = old.seq;
	DELETE FROM output WHERE job = old.id;
END;

-- A piece of what a job's workers print, by the offset at which it ends.
CREATE TABLE output (
	job TEXT NOT NULL,
	until INTEGER NOT NULL,
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL,
	PRIMARY KEY (job, until)
) WITHOUT ROWID;

-- As jobs.KeptOutput and jobs.KeptPieces say.
CREATE TRIGGER output_kept AFTER INSERT ON output BEGIN
	DELETE FROM output WHERE job = new.job AND (until <= new.until - 65536
		OR until <= (SELECT until FROM output WHERE job = new.job ORDER BY until DESC LIMIT 1 OFFSET 1000));
END;

CREATE TABLE memos (
	id TEXT NOT NULL PRIMARY KEY,
	expires INTEGER, -- in nanoseconds
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX memos_expires ON memos (expires) WHERE expires IS NOT NULL;

CREATE TABLE statistics (
	hour INTEGER NOT NULL,
	source TEXT NOT NULL,
	type TEXT NOT NULL,
	tag TEXT NOT NULL,
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL,
	PRIMARY KEY (hour, source, type, tag)
) WITHOUT ROWID;

-- The events of one turn of the scheduler.
CREATE TABLE job_events (
	first INTEGER PRIMARY KEY,
	last INTEGER NOT NULL,
	until INTEGER NOT NULL,
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL
);

-- For people who look with sqlite3.

CREATE VIEW lock_list AS
	SELECT name, iif(doc ->> 'freeze' IS NOT NULL, 'frozen', iif(json_array_length(doc, '$.holders') > 0, 'held', 'awaited')) AS state,
		doc ->> 'token' AS token, json_array_length(doc, '$.holders') AS holders, waiting AS waiters
	FROM locks ORDER BY name;

CREATE VIEW holder_list AS
	SELECT l.name AS lock, h.value ->> '$.owner.id' AS owner, h.value ->> '$.owner.session' AS session, h.value ->> '$.owner.host' AS host,
		h.value ->> 'token' AS token, h.value ->> 'lease_id' AS lease_id, h.value ->> 'ttl_ms' AS ttl_ms,
		h.value ->> 'held_since' AS held_since, h.value ->> 'acquired_at' AS renewed, h.value ->> 'expires_at' AS expires
	FROM locks l, json_each(l.doc, '$.holders') h ORDER BY l.name, h.key;

CREATE VIEW queue_list AS
	SELECT lock, doc ->> '$.owner.id' AS owner, doc ->> '$.owner.session' AS session, doc ->> '$.owner.host' AS host,
		coalesce(doc ->> 'priority', 0) AS priority, lease_id, doc ->> 'since' AS since, doc ->> 'until' AS until
	FROM waiters ORDER BY lock, priority DESC, doc ->> 'place';

CREATE VIEW event_list AS
	SELECT e.first + v.key AS seq, v.value ->> 'time' AS at, v.value ->> 'type' AS type, v.value ->> 'name' AS lock,
		v.value ->> '$.owner.id' AS owner, v.value ->> '$.owner.host' AS host, v.value ->> 'token' AS token,
		v.value ->> 'lease_id' AS lease_id, v.value -> 'extra' AS extra
	FROM lock_events e, json_each(e.doc) v ORDER BY 1;

CREATE VIEW job_list AS
	SELECT j.id, j.doc ->> 'type' AS type, j.doc ->> 'state' AS state, j.seq, j.doc ->> 'revision' AS revision, j.doc ->> 'ended_at' AS ended, j.doc,
		coalesce(j.payload, (SELECT p.payload FROM payloads p WHERE p.seq = j.seq)) AS payload
	FROM (SELECT id, seq, doc, payload FROM living UNION ALL SELECT id, seq, doc, payload FROM ended) j;

CREATE VIEW job_event_list AS
	SELECT e.first + v.key AS seq, v.value ->> 'time' AS at, v.value ->> 'type' AS type, v.value ->> 'job_id' AS job, v.value ->> 'worker_id' AS worker,
		v.value ->> 'attempt' AS attempt, v.value ->> 'code' AS code, v.value ->> 'reason' AS reason
	FROM job_events e, json_each(e.doc) v ORDER BY 1;
