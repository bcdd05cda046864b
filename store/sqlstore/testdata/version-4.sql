-- A database of version 4, whose journals have one turn (a type was frozen) and one transaction about locks: one was released, a claim for
-- the other was queued, and that was frozen.
BEGIN TRANSACTION;
CREATE TABLE state (
	id             INTEGER PRIMARY KEY CHECK (id = 1),
	clock          INTEGER NOT NULL DEFAULT 0,
	lock_event     INTEGER NOT NULL DEFAULT 0,
	token_floor    INTEGER NOT NULL DEFAULT 0,
	revision_floor INTEGER NOT NULL DEFAULT 0,
	backup         INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE job_state (
	id           INTEGER PRIMARY KEY CHECK (id = 1),
	job_seq      INTEGER NOT NULL DEFAULT 0,
	job_revision INTEGER NOT NULL DEFAULT 0,
	job_event    INTEGER NOT NULL DEFAULT 0,
	job_clock    INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO state VALUES(1,1795282290002559000,2,0,0,0);
INSERT INTO job_state VALUES(1,3,7,8,1795282290029);
CREATE TABLE locks (
	name     TEXT PRIMARY KEY,
	revision INTEGER NOT NULL,
	token    INTEGER NOT NULL,
	changed  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO locks VALUES('free',1,1,1795282290002559000);
INSERT INTO locks VALUES('held',1,1,1795282290000700000);
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
INSERT INTO holders VALUES('held','lease of a',1048576,'a',NULL,'h',1,1795282290000697068,1795282290000697068,1795282350000697068,60000000000,NULL,0,NULL,'{"to":{"id":"z"},"asked_at":"2026-11-21T17:31:30.004813831Z","grace_ns":1000000000}','{"process":{"pid":7,"boot":"b"},"metadata":{"why":"because"}}');
INSERT INTO holders VALUES('free','lease of a',1048576,'a',NULL,'h',1,1795282290002555363,1795282290002555363,1795282350002555363,60000000000,NULL,0,NULL,NULL,'{}');
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
INSERT INTO lock_events VALUES(1,1795282290000697068,'acquire','held','lease of a','a',NULL,'h',1,60000000000,1795282350000697068,NULL);
INSERT INTO lock_events VALUES(2,1795282290002555363,'acquire','free','lease of a','a',NULL,'h',1,60000000000,1795282350002555363,NULL);
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
INSERT INTO jobs VALUES(2,'leased','5a3ec1e0651551f6f40b44423a1dafb2',1795282290031,1795282290029,1795282290031,1,1,NULL,0,NULL,1795282890029,7);
INSERT INTO jobs VALUES(3,'queued',NULL,1795282290029,1795282290029,NULL,0,0,NULL,0,NULL,1795282890029,6);
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
INSERT INTO specs VALUES(1,'01a1ff29c559a18841f4f2fef8eee7f5','generic','normal',1,0,'{"n": 1}','first','["nightly"]',NULL,1,1000000000,NULL,NULL,1795282290009);
INSERT INTO specs VALUES(2,'01a1ff29c56d6b91ded7045211c9156e','generic','normal',1,0,'{"n": 1}','second','["nightly"]',NULL,1,1000000000,NULL,NULL,1795282290029);
INSERT INTO specs VALUES(3,'01a1ff29c56d89e402251c8e92e2bcc7','generic','normal',1,0,'{"n": 1}','third','["nightly"]',NULL,1,1000000000,NULL,NULL,1795282290029);
CREATE TABLE outputs (
	seq        INTEGER PRIMARY KEY,
	progress   REAL,
	message    TEXT,
	metrics    TEXT,
	checkpoint TEXT,
	result     TEXT,
	error      TEXT
) STRICT;
INSERT INTO outputs VALUES(1,NULL,NULL,NULL,NULL,'"done"',NULL);
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
ALTER TABLE leases ADD COLUMN lock_tokens TEXT;
INSERT INTO leases VALUES('5a3ec1e0651551f6f40b44423a1dafb2','01a1ff29c56d6b91ded7045211c9156e','w',NULL,1,1,1,1795282290031,1795282350031,1795282290031,NULL,NULL,NULL,NULL,'{"deploy":4}');
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
INSERT INTO attempts VALUES('01a1ff29c559a18841f4f2fef8eee7f5',1,1,'bdcc7d954cee8d71d84bd3eca619a9f6','w',1,'completed','completed',1795282290017,1795282290024,1795282290024,NULL);
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
INSERT INTO ended VALUES(4,1,'completed',1795282290024,1795282290009,1795282290017,1795282290024,1,1,'completed',0,NULL,1795282890009);
CREATE TABLE idempotency_keys (
	key     TEXT PRIMARY KEY,
	print   BLOB NOT NULL,
	job     TEXT NOT NULL,
	state   TEXT,
	expires INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO idempotency_keys VALUES('first',X'7e1b78821a295ca2ece59ca57580412a83936fa97283cfc71fe404f55d7838da','01a1ff29c559a18841f4f2fef8eee7f5','completed',1795368690024);
INSERT INTO idempotency_keys VALUES('second',X'7e1b78821a295ca2ece59ca57580412a83936fa97283cfc71fe404f55d7838da','01a1ff29c56d6b91ded7045211c9156e',NULL,NULL);
INSERT INTO idempotency_keys VALUES('third',X'7e1b78821a295ca2ece59ca57580412a83936fa97283cfc71fe404f55d7838da','01a1ff29c56d89e402251c8e92e2bcc7',NULL,NULL);
CREATE TABLE answered (
	worker  TEXT NOT NULL,
	request TEXT NOT NULL,
	lease   TEXT NOT NULL,
	expires INTEGER,
	PRIMARY KEY (worker, request)
) STRICT, WITHOUT ROWID;
INSERT INTO answered VALUES('w','r','{"id":"bdcc7d954cee8d71d84bd3eca619a9f6","job":"01a1ff29c559a18841f4f2fef8eee7f5","worker":"w","request":"r","units":1,"token":1,"attempt":1,"issued":"2026-11-21T17:31:30.017Z","expires":"2026-11-21T17:32:30.017Z","last_beat":"2026-11-21T17:31:30.017Z","first_beat":"2026-11-21T17:31:30.024Z","ttl_ns":0,"beat_every_ns":0}',1795282890024);
CREATE TABLE frozen_types (
	type TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
CREATE TABLE job_journal (
	id   INTEGER PRIMARY KEY,
	body BLOB NOT NULL
) STRICT;
INSERT INTO job_journal VALUES(17,x'0200000000000000000000000002020C6465706C6F79060E10DA95CEF2BF68');
CREATE TABLE lock_journal (
	id   INTEGER PRIMARY KEY,
	body BLOB NOT NULL
) STRICT;
INSERT INTO lock_journal VALUES(5,x'01FAE4CBF4E3EE8FEA31040868656C640402020202660E667265657A6572000000000E72656C65617365FAE4CBF4E3EE8FEA3100000000000280808001146C65617365206F66207702770000026800000000000080E0BA84BF030000000000008EA0CBF4E3EE8FEA318ED0E8B6C3F08FEA31000866726565040200000002146C65617365206F66206100000602B2FCAAF3E3EE8FEA310E72656C656173650866726565146C65617365206F662061026100000268000280E0BA84BF0300020E68656C645F6D730231');
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
INSERT INTO job_events VALUES(1,1795282290009,'submitted','01a1ff29c559a18841f4f2fef8eee7f5',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO job_events VALUES(2,1795282290017,'granted','01a1ff29c559a18841f4f2fef8eee7f5','bdcc7d954cee8d71d84bd3eca619a9f6','w',1,1,NULL,NULL);
INSERT INTO job_events VALUES(3,1795282290024,'running','01a1ff29c559a18841f4f2fef8eee7f5','bdcc7d954cee8d71d84bd3eca619a9f6','w',1,1,NULL,NULL);
INSERT INTO job_events VALUES(4,1795282290024,'completed','01a1ff29c559a18841f4f2fef8eee7f5','bdcc7d954cee8d71d84bd3eca619a9f6','w',1,1,'completed',NULL);
INSERT INTO job_events VALUES(5,1795282290029,'submitted','01a1ff29c56d6b91ded7045211c9156e',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO job_events VALUES(6,1795282290029,'submitted','01a1ff29c56d89e402251c8e92e2bcc7',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO job_events VALUES(7,1795282290031,'granted','01a1ff29c56d6b91ded7045211c9156e','5a3ec1e0651551f6f40b44423a1dafb2','w',1,1,NULL,NULL);
INSERT INTO job_events VALUES(8,1795282290033,'frozen',NULL,NULL,NULL,NULL,NULL,'deploy',NULL);
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
INSERT INTO stats_new VALUES(1,1795280400000,'{"counts":[{"hour":1795280400000,"event":"submitted","n":1},{"hour":1795280400000,"event":"submitted","tag":"nightly","n":1}]}');
INSERT INTO stats_new VALUES(2,1795280400000,'{"counts":[{"hour":1795280400000,"event":"granted","n":1},{"hour":1795280400000,"event":"granted","tag":"nightly","n":1}]}');
INSERT INTO stats_new VALUES(3,1795280400000,'{"tallies":[{"hour":1795280400000,"type":"generic","completed":1,"waits":1,"wait_sum_ns":8000000,"runs":{"buckets":{"99":1},"min_ns":7000000,"max_ns":7000000}}],"counts":[{"hour":1795280400000,"event":"completed","n":1},{"hour":1795280400000,"event":"completed","tag":"nightly","n":1},{"hour":1795280400000,"event":"running","n":1},{"hour":1795280400000,"event":"running","tag":"nightly","n":1}]}');
INSERT INTO stats_new VALUES(4,1795280400000,'{"counts":[{"hour":1795280400000,"event":"submitted","n":2},{"hour":1795280400000,"event":"submitted","tag":"nightly","n":2}]}');
INSERT INTO stats_new VALUES(5,1795280400000,'{"counts":[{"hour":1795280400000,"event":"granted","n":1},{"hour":1795280400000,"event":"granted","tag":"nightly","n":1}]}');
INSERT INTO stats_new VALUES(6,1795280400000,'{"counts":[{"hour":1795280400000,"event":"frozen","n":1}]}');
CREATE INDEX lock_events_lock ON lock_events (lock);
CREATE INDEX ended_seq ON ended (seq);
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
PRAGMA application_id = 1819241332;
PRAGMA user_version = 4;
COMMIT;
