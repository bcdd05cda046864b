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

-- The events of one change of a lock.
CREATE TABLE lock_events (
	first INTEGER PRIMARY KEY, -- number of the first
	last INTEGER NOT NULL,
	since INTEGER NOT NULL, -- time of the earliest, in nanoseconds
	until INTEGER NOT NULL, -- of the latest
	lock TEXT NOT NULL,
	doc TEXT NOT NULL,
	sum INTEGER NOT NULL
);
CREATE INDEX lock_events_lock ON lock_events (lock);

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
CREATE INDEX ended_state ON ended (state);
CREATE INDEX ended_type ON ended (type);

CREATE TABLE payloads (
	seq INTEGER PRIMARY KEY,
	payload TEXT NOT NULL
);

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
