-- A database of version 5, as pg_dump writes it, without the names of its schema and its owner. Its last two turns are not in the tables
-- yet.
CREATE FUNCTION has_new_lock_events() RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
	earlier pg_snapshot;
	since xid8 := '0';
	other xid8[] := '{}';
BEGIN
	SELECT numbered INTO earlier FROM state;
	IF pg_snapshot_xmax(earlier) <= pg_snapshot_xmax(pg_current_snapshot()) THEN
		since := pg_snapshot_xmax(earlier);
		other := ARRAY(SELECT pg_snapshot_xip(earlier));
	END IF;
	RETURN EXISTS (SELECT 1 FROM lock_events_new WHERE xid >= since)
		OR EXISTS (SELECT 1 FROM lock_events_new WHERE xid = ANY (other));
END
$$;
CREATE FUNCTION move_lock_events(base bigint, earlier pg_snapshot, OUT n bigint, OUT seen pg_snapshot) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
	since xid8 := '0';
	other xid8[] := '{}';
BEGIN
	IF pg_snapshot_xmax(earlier) <= pg_snapshot_xmax(pg_current_snapshot()) THEN -- or it is of another cluster
		since := pg_snapshot_xmax(earlier);
		other := ARRAY(SELECT pg_snapshot_xip(earlier));
	END IF;
	WITH these AS (
		DELETE FROM lock_events_new WHERE xid >= since OR xid = ANY (other)
		RETURNING id, at, type, lock, lease_id, owner, session, host, token, ttl, expires, detail
	), moved AS (
		INSERT INTO lock_events (seq, at, type, lock, lease_id, owner, session, host, token, ttl, expires, detail)
		SELECT base + row_number() OVER (ORDER BY id), at, type, lock, lease_id, owner, session, host, token, ttl, expires, detail FROM these
		RETURNING seq
	)
	SELECT count(*), pg_current_snapshot() INTO n, seen FROM moved;
END
$$;
CREATE FUNCTION number_before() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
	n BIGINT;
BEGIN
	SELECT m.n, m.seen INTO n, NEW.numbered FROM move_lock_events(OLD.lock_event, OLD.numbered) m;
	NEW.lock_event := NEW.lock_event + n;
	NEW.numberings := OLD.numberings + 1;
	RETURN NEW;
END
$$;
CREATE FUNCTION number_lock_events(everything boolean) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
	base BIGINT;
	earlier pg_snapshot;
	n BIGINT;
	seen pg_snapshot;
BEGIN
	SELECT lock_event, numbered INTO base, earlier FROM state FOR UPDATE;
	IF everything THEN
		earlier := NULL;
	END IF;
	SELECT m.n, m.seen INTO n, seen FROM move_lock_events(base, earlier) m;
	IF n > 0 OR everything THEN
		UPDATE state SET lock_event = base + n, numbered = seen, numberings = numberings + 1;
	END IF;
	RETURN n;
END
$$;
CREATE TABLE answered (
    worker text NOT NULL,
    request text NOT NULL,
    lease text NOT NULL,
    expires bigint
);
CREATE TABLE attempts (
    job text NOT NULL,
    number bigint NOT NULL,
    token bigint NOT NULL,
    lease_id text NOT NULL,
    worker text NOT NULL,
    units bigint NOT NULL,
    state text NOT NULL,
    code text,
    issued bigint,
    first_beat bigint,
    ended bigint,
    error text
);
CREATE TABLE counts (
    hour bigint NOT NULL,
    event text NOT NULL,
    tag text NOT NULL,
    n bigint NOT NULL
);
CREATE TABLE ended (
    revision bigint NOT NULL,
    seq bigint NOT NULL,
    state text NOT NULL,
    updated_at bigint,
    ready_at bigint,
    started_at bigint,
    ended_at bigint,
    attempt bigint NOT NULL,
    token bigint NOT NULL,
    code text,
    cancel bigint NOT NULL,
    reason text,
    ord bigint NOT NULL
);
CREATE TABLE lock_events (
    seq bigint NOT NULL,
    at bigint,
    type text NOT NULL,
    lock text NOT NULL COLLATE pg_catalog."C",
    lease_id text,
    owner text,
    session text,
    host text,
    token bigint,
    ttl bigint,
    expires bigint,
    detail text
);
CREATE VIEW event_list AS
 SELECT e.seq,
    to_timestamp((((e.at)::numeric / '1000000000'::numeric))::double precision) AS at,
    e.type,
    e.lock,
    e.owner,
    e.host,
    e.token,
    e.lease_id,
    e.detail
   FROM lock_events e
  ORDER BY e.seq;
CREATE TABLE freezes (
    lock text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL,
    owner text NOT NULL,
    session text,
    host text,
    reason text,
    frozen_at bigint,
    ttl bigint,
    expires_at bigint,
    detail text NOT NULL
);
CREATE TABLE frozen_types (
    type text NOT NULL
);
CREATE TABLE holders (
    lock text NOT NULL COLLATE pg_catalog."C",
    lease_id text NOT NULL,
    place bigint NOT NULL,
    owner text NOT NULL,
    session text,
    host text,
    token bigint NOT NULL,
    held_since bigint,
    acquired_at bigint,
    expires_at bigint,
    ttl bigint,
    max_hold bigint,
    renewals bigint NOT NULL,
    pending bigint,
    yield text,
    claim text NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE VIEW holder_list AS
 SELECT h.lock,
    h.owner,
    h.session,
    h.host,
    h.token,
    h.lease_id,
    (h.ttl / 1000000) AS ttl_ms,
    h.renewals,
    to_timestamp((((h.held_since)::numeric / '1000000000'::numeric))::double precision) AS held_since,
    to_timestamp((((h.acquired_at)::numeric / '1000000000'::numeric))::double precision) AS renewed,
    to_timestamp((((h.expires_at)::numeric / '1000000000'::numeric))::double precision) AS expires
   FROM holders h
  ORDER BY h.lock, h.place;
CREATE TABLE idempotency_keys (
    key text NOT NULL,
    print bytea NOT NULL,
    job text NOT NULL,
    state text,
    expires bigint
);
CREATE TABLE job_changes (
    seq bigint NOT NULL,
    origin text NOT NULL,
    at bigint NOT NULL,
    body bytea NOT NULL,
    sum bigint
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE ONLY job_changes ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE job_events (
    seq bigint NOT NULL,
    at bigint,
    type text NOT NULL,
    job text,
    lease_id text,
    worker text,
    attempt bigint,
    token bigint,
    code text,
    reason text
);
CREATE TABLE job_folded (
    id bigint NOT NULL,
    changes bigint NOT NULL,
    job_seq bigint NOT NULL,
    CONSTRAINT job_folded_id_check CHECK ((id = 1))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE jobs (
    seq bigint NOT NULL,
    state text NOT NULL,
    lease_id text,
    updated_at bigint,
    ready_at bigint,
    started_at bigint,
    attempt bigint NOT NULL,
    token bigint NOT NULL,
    code text,
    cancel bigint NOT NULL,
    reason text,
    ord bigint NOT NULL,
    revision bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE leases (
    id text NOT NULL,
    job text NOT NULL,
    worker text NOT NULL,
    request text,
    units bigint NOT NULL,
    token bigint NOT NULL,
    attempt bigint NOT NULL,
    issued bigint,
    expires bigint,
    last_beat bigint,
    first_beat bigint,
    run_until bigint,
    ttl bigint,
    beat_every bigint,
    lock_tokens text
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE specs (
    seq bigint NOT NULL,
    id text NOT NULL,
    type text NOT NULL,
    priority text NOT NULL,
    units bigint NOT NULL,
    only_one bigint NOT NULL,
    payload text,
    idempotency_key text,
    tags text,
    max_runtime bigint,
    max_attempts bigint NOT NULL,
    retry_backoff bigint,
    run_at bigint,
    locks text,
    created_at bigint
);
CREATE VIEW job_list AS
 SELECT s.id,
    s.type,
    j.state,
    s.priority,
    s.units,
    j.attempt,
    s.max_attempts,
    l.worker,
    j.lease_id,
    to_timestamp((((s.created_at)::numeric / '1000'::numeric))::double precision) AS created,
    to_timestamp((((j.updated_at)::numeric / '1000'::numeric))::double precision) AS updated
   FROM ((jobs j
     JOIN specs s USING (seq))
     LEFT JOIN leases l ON ((l.id = j.lease_id)))
  ORDER BY j.ord, j.seq;
CREATE TABLE job_state (
    id bigint NOT NULL,
    job_seq bigint DEFAULT 0 NOT NULL,
    job_revision bigint DEFAULT 0 NOT NULL,
    job_event bigint DEFAULT 0 NOT NULL,
    job_clock bigint DEFAULT 0 NOT NULL,
    changes bigint DEFAULT 0 NOT NULL,
    CONSTRAINT job_state_id_check CHECK ((id = 1))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE lock_events_new (
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    id bigint NOT NULL,
    at bigint,
    type text NOT NULL,
    lock text NOT NULL COLLATE pg_catalog."C",
    lease_id text,
    owner text,
    session text,
    host text,
    token bigint,
    ttl bigint,
    expires bigint,
    detail text
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE lock_events_new ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME lock_events_new_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE locks (
    name text NOT NULL COLLATE pg_catalog."C",
    revision bigint NOT NULL,
    token bigint NOT NULL,
    changed bigint NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE waiters (
    lock text NOT NULL COLLATE pg_catalog."C",
    lease_id text NOT NULL,
    place bigint NOT NULL,
    owner text NOT NULL,
    session text,
    host text,
    priority bigint NOT NULL,
    since bigint,
    until bigint,
    ttl bigint,
    max_hold bigint,
    claim text NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE VIEW lock_list AS
 SELECT l.name,
        CASE
            WHEN (EXISTS ( SELECT 1
               FROM freezes f
              WHERE (f.lock = l.name))) THEN 'frozen'::text
            WHEN (EXISTS ( SELECT 1
               FROM holders h
              WHERE (h.lock = l.name))) THEN 'held'::text
            WHEN (EXISTS ( SELECT 1
               FROM waiters w
              WHERE (w.lock = l.name))) THEN 'awaited'::text
            ELSE 'free'::text
        END AS state,
    l.token,
    l.revision,
    ( SELECT count(*) AS count
           FROM holders h
          WHERE (h.lock = l.name)) AS holders,
    ( SELECT count(*) AS count
           FROM waiters w
          WHERE (w.lock = l.name)) AS waiters,
    to_timestamp((((l.changed)::numeric / '1000000000'::numeric))::double precision) AS changed
   FROM locks l;
CREATE TABLE outputs (
    seq bigint NOT NULL,
    progress double precision,
    message text,
    metrics text,
    checkpoint text,
    result text,
    error text
);
CREATE VIEW queue_list AS
 SELECT w.lock,
    w.owner,
    w.session,
    w.host,
    w.priority,
    w.lease_id,
    to_timestamp((((w.since)::numeric / '1000000000'::numeric))::double precision) AS since,
    to_timestamp((((w.until)::numeric / '1000000000'::numeric))::double precision) AS until
   FROM waiters w
  ORDER BY w.lock, w.place;
CREATE TABLE schema_version (
    version bigint NOT NULL
);
CREATE TABLE state (
    id bigint NOT NULL,
    clock bigint DEFAULT 0 NOT NULL,
    lock_event bigint DEFAULT 0 NOT NULL,
    token_floor bigint DEFAULT 0 NOT NULL,
    revision_floor bigint DEFAULT 0 NOT NULL,
    oldest bigint DEFAULT 1 NOT NULL,
    numberings bigint DEFAULT 0 NOT NULL,
    numbered pg_snapshot,
    CONSTRAINT state_id_check CHECK ((id = 1))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE stats_new (
    id bigint NOT NULL,
    hour bigint NOT NULL,
    body text NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE stats_new ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME stats_new_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE tallies (
    hour bigint NOT NULL,
    type text NOT NULL,
    body text NOT NULL
);
INSERT INTO answered VALUES ('w', 'r', '{"id":"465d861d577618716000933da394982c","job":"01a1ff4cb2aa010bdabe2804ff068fe1","worker":"w","request":"r","units":1,"token":1,"attempt":1,"issued":"2026-11-21T18:09:39.008Z","expires":"2026-11-21T18:10:39.008Z","last_beat":"2026-11-21T18:09:39.008Z","first_beat":"2026-11-21T18:09:39.012Z","ttl_ns":0,"beat_every_ns":0}', 1795285179012);
INSERT INTO attempts VALUES ('01a1ff4cb2aa010bdabe2804ff068fe1', 1, 1, '465d861d577618716000933da394982c', 'w', 1, 'completed', 'completed', 1795284579008, 1795284579012, 1795284579012, NULL);
INSERT INTO ended VALUES (4, 1, 'completed', 1795284579012, 1795284578995, 1795284579008, 1795284579012, 1, 1, 'completed', 0, NULL, 1795285178995);
INSERT INTO freezes VALUES ('held', 'f', 'freezer', NULL, NULL, 'release', 1795284578956351000, NULL, NULL, '{}');
INSERT INTO holders VALUES ('held', 'lease of a', 1048576, 'a', NULL, 'h', 1, 1795284578950404000, 1795284578950404000, 1795380898656515000, 60000000000, NULL, 0, NULL, '{"to":{"id":"z"},"asked_at":"2026-11-21T18:09:38.956351Z","grace_ns":1000000000}', '{"process":{"pid":7,"boot":"b"},"metadata":{"why":"because"}}');
INSERT INTO idempotency_keys VALUES ('first', '\x7e1b78821a295ca2ece59ca57580412a83936fa97283cfc71fe404f55d7838da', '01a1ff4cb2aa010bdabe2804ff068fe1', 'completed', 1795370979012);
INSERT INTO idempotency_keys VALUES ('second', '\x7e1b78821a295ca2ece59ca57580412a83936fa97283cfc71fe404f55d7838da', '01a1ff4cb2c665fe9011a39a4de63e47', NULL, NULL);
INSERT INTO idempotency_keys VALUES ('third', '\x7e1b78821a295ca2ece59ca57580412a83936fa97283cfc71fe404f55d7838da', '01a1ff4cb2c6c8c9045708a2618229de', NULL, NULL);
INSERT INTO job_changes VALUES (7, '6153f4328f143848d2a8b897135473e7', 1795284579015, '\x840204040c6c656173656440633539333939656136353333643939346163643863393130383236653730613990cbe5f4bf68010402020000008ceaaef5bf680e4030316131666634636232633636356665393031316133396134646536336534370e67656e657269630c6e6f726d616c020002107b226e223a20317d0c7365636f6e64020e6e696768746c79000280a8d6b907000001000002030502770002020204c2a907bfa90700000000020c6465706c6f7908000000000000020e020e6772616e74656405030f0202000000000000060e0e8ccbe5f4bf682cf9f590', 2432039212);
INSERT INTO job_changes VALUES (8, '6153f4328f143848d2a8b897135473e7', 1795284579015, '\x84000000000000000000021090cbe5f4bf680c66726f7a656e00000000000c6465706c6f79000000020203060e108ccbe5f4bf68dcc3f888', 2298004444);
INSERT INTO job_events VALUES (1, 1795284578995, 'submitted', '01a1ff4cb2aa010bdabe2804ff068fe1', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO job_events VALUES (2, 1795284579008, 'granted', '01a1ff4cb2aa010bdabe2804ff068fe1', '465d861d577618716000933da394982c', 'w', 1, 1, NULL, NULL);
INSERT INTO job_events VALUES (3, 1795284579012, 'running', '01a1ff4cb2aa010bdabe2804ff068fe1', '465d861d577618716000933da394982c', 'w', 1, 1, NULL, NULL);
INSERT INTO job_events VALUES (4, 1795284579012, 'completed', '01a1ff4cb2aa010bdabe2804ff068fe1', '465d861d577618716000933da394982c', 'w', 1, 1, 'completed', NULL);
INSERT INTO job_events VALUES (5, 1795284579014, 'submitted', '01a1ff4cb2c665fe9011a39a4de63e47', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO job_events VALUES (6, 1795284579014, 'submitted', '01a1ff4cb2c6c8c9045708a2618229de', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO job_folded VALUES (1, 6, 3);
INSERT INTO job_state VALUES (1, 3, 7, 8, 1795284579014, 8);
INSERT INTO jobs VALUES (3, 'queued', NULL, 1795284579014, 1795284579014, NULL, 0, 0, NULL, 0, NULL, 1795285179014, 6);
INSERT INTO jobs VALUES (2, 'queued', NULL, 1795284579015, 1795284579014, NULL, 0, 0, NULL, 0, NULL, 1795285179014, 5);
INSERT INTO lock_events VALUES (1, 1795284578950404000, 'acquire', 'held', 'lease of a', 'a', NULL, 'h', 1, 60000000000, 1795284638950404000, NULL);
INSERT INTO lock_events VALUES (2, 1795284578954191000, 'acquire', 'free', 'lease of a', 'a', NULL, 'h', 1, 60000000000, 1795284638954191000, NULL);
INSERT INTO lock_events VALUES (3, 1795284578955323000, 'release', 'free', 'lease of a', 'a', NULL, 'h', 1, 60000000000, NULL, '{"extra":{"held_ms":"1"}}');
INSERT INTO locks VALUES ('free', 2, 1, 1795284578955323000);
INSERT INTO locks VALUES ('held', 2097154, 1, 1795284578956351000);
INSERT INTO outputs VALUES (1, NULL, NULL, NULL, NULL, '"done"', NULL);
INSERT INTO schema_version VALUES (1);
INSERT INTO schema_version VALUES (2);
INSERT INTO schema_version VALUES (3);
INSERT INTO schema_version VALUES (4);
INSERT INTO schema_version VALUES (5);
INSERT INTO specs VALUES (1, '01a1ff4cb2aa010bdabe2804ff068fe1', 'generic', 'normal', 1, 0, '{"n": 1}', 'first', '["nightly"]', NULL, 1, 1000000000, NULL, NULL, 1795284578995);
INSERT INTO specs VALUES (2, '01a1ff4cb2c665fe9011a39a4de63e47', 'generic', 'normal', 1, 0, '{"n": 1}', 'second', '["nightly"]', NULL, 1, 1000000000, NULL, NULL, 1795284579014);
INSERT INTO specs VALUES (3, '01a1ff4cb2c6c8c9045708a2618229de', 'generic', 'normal', 1, 0, '{"n": 1}', 'third', '["nightly"]', NULL, 1, 1000000000, NULL, NULL, 1795284579014);
INSERT INTO state VALUES (1, 1795380838656515000, 3, 0, 0, 5, 2, '728:728:');
INSERT INTO stats_new OVERRIDING SYSTEM VALUE VALUES (1, 1795284000000, '{"counts":[{"hour":1795284000000,"event":"submitted","n":1},{"hour":1795284000000,"event":"submitted","tag":"nightly","n":1}]}');
INSERT INTO stats_new OVERRIDING SYSTEM VALUE VALUES (2, 1795284000000, '{"counts":[{"hour":1795284000000,"event":"granted","n":1},{"hour":1795284000000,"event":"granted","tag":"nightly","n":1}]}');
INSERT INTO stats_new OVERRIDING SYSTEM VALUE VALUES (3, 1795284000000, '{"tallies":[{"hour":1795284000000,"type":"generic","completed":1,"waits":1,"wait_sum_ns":13000000,"runs":{"buckets":{"71":1},"min_ns":4000000,"max_ns":4000000}}],"counts":[{"hour":1795284000000,"event":"completed","n":1},{"hour":1795284000000,"event":"completed","tag":"nightly","n":1},{"hour":1795284000000,"event":"running","n":1},{"hour":1795284000000,"event":"running","tag":"nightly","n":1}]}');
INSERT INTO stats_new OVERRIDING SYSTEM VALUE VALUES (4, 1795284000000, '{"counts":[{"hour":1795284000000,"event":"submitted","n":2},{"hour":1795284000000,"event":"submitted","tag":"nightly","n":2}]}');
INSERT INTO stats_new OVERRIDING SYSTEM VALUE VALUES (5, 1795284000000, '{"counts":[{"hour":1795284000000,"event":"granted","n":1},{"hour":1795284000000,"event":"granted","tag":"nightly","n":1}]}');
INSERT INTO stats_new OVERRIDING SYSTEM VALUE VALUES (6, 1795284000000, '{"counts":[{"hour":1795284000000,"event":"frozen","n":1}]}');
INSERT INTO waiters VALUES ('held', 'lease of w', 1048576, 'w', NULL, 'h', 0, 1795284578956351000, 1795380848656515000, 60000000000, NULL, '{}');
SELECT pg_catalog.setval('lock_events_new_id_seq', 1, true);
SELECT pg_catalog.setval('stats_new_id_seq', 1, false);
ALTER TABLE ONLY answered
    ADD CONSTRAINT answered_pkey PRIMARY KEY (worker, request);
ALTER TABLE ONLY attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (job, number);
ALTER TABLE ONLY counts
    ADD CONSTRAINT counts_pkey PRIMARY KEY (hour, event, tag);
ALTER TABLE ONLY ended
    ADD CONSTRAINT ended_pkey PRIMARY KEY (revision);
ALTER TABLE ONLY freezes
    ADD CONSTRAINT freezes_pkey PRIMARY KEY (lock);
ALTER TABLE ONLY frozen_types
    ADD CONSTRAINT frozen_types_pkey PRIMARY KEY (type);
ALTER TABLE ONLY holders
    ADD CONSTRAINT holders_pkey PRIMARY KEY (lock, lease_id);
ALTER TABLE ONLY idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key);
ALTER TABLE ONLY job_changes
    ADD CONSTRAINT job_changes_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY job_events
    ADD CONSTRAINT job_events_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY job_folded
    ADD CONSTRAINT job_folded_pkey PRIMARY KEY (id);
ALTER TABLE ONLY job_state
    ADD CONSTRAINT job_state_pkey PRIMARY KEY (id);
ALTER TABLE ONLY jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (id);
ALTER TABLE ONLY lock_events_new
    ADD CONSTRAINT lock_events_new_pkey PRIMARY KEY (xid, id);
ALTER TABLE ONLY lock_events
    ADD CONSTRAINT lock_events_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY locks
    ADD CONSTRAINT locks_pkey PRIMARY KEY (name);
ALTER TABLE ONLY outputs
    ADD CONSTRAINT outputs_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY specs
    ADD CONSTRAINT specs_id_key UNIQUE (id);
ALTER TABLE ONLY specs
    ADD CONSTRAINT specs_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY state
    ADD CONSTRAINT state_pkey PRIMARY KEY (id);
ALTER TABLE ONLY stats_new
    ADD CONSTRAINT stats_new_pkey PRIMARY KEY (id);
ALTER TABLE ONLY tallies
    ADD CONSTRAINT tallies_pkey PRIMARY KEY (hour, type);
ALTER TABLE ONLY waiters
    ADD CONSTRAINT waiters_pkey PRIMARY KEY (lock, lease_id);
CREATE INDEX ended_seq ON ended USING btree (seq);
CREATE INDEX lock_events_lock ON lock_events USING btree (lock, seq);
CREATE TRIGGER number_before BEFORE UPDATE OF lock_event ON state FOR EACH ROW WHEN (((new.numberings = old.numberings) AND (new.lock_event > old.lock_event))) EXECUTE FUNCTION number_before();
