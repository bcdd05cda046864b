-- Version 2: events of locks are stored with their change, and numbered afterwards, so that changes of different locks do not wait for
-- each other.
-- beside: 1

-- oldest: programs that know no version as high change nothing. numbered: transactions that had been seen when events were numbered last;
-- numberings: how often they were.
ALTER TABLE state
	ADD COLUMN oldest     BIGINT NOT NULL DEFAULT 1,
	ADD COLUMN numberings BIGINT NOT NULL DEFAULT 0,
	ADD COLUMN numbered   pg_snapshot;

-- Events that have no number yet. Those of a lock are in the order of their ids, and none can be seen before those before it: who changes a
-- lock has it locked until the transaction has ended.
CREATE TABLE lock_events_new (
	xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),
	id       BIGINT GENERATED ALWAYS AS IDENTITY,
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
	detail   TEXT,
	PRIMARY KEY (xid, id)
);
ALTER TABLE lock_events_new SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Moves events that have no number to lock_events, with numbers after base. Only transactions that had not been seen are looked at: a
-- long transaction of anybody keeps rows from being cleaned away, and there may be millions that were moved. NULL stands for none seen. Whoever
-- calls this has the row of state locked.
CREATE FUNCTION move_lock_events(base BIGINT, earlier pg_snapshot, OUT n BIGINT, OUT seen pg_snapshot)
	LANGUAGE plpgsql SET enable_seqscan = off AS $$
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

-- Tells whether there are events without a number.
CREATE FUNCTION has_new_lock_events() RETURNS BOOLEAN
	LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
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

-- Numbers the events that have none: those of transactions that had not been seen, or all.
CREATE FUNCTION number_lock_events(everything BOOLEAN) RETURNS BIGINT LANGUAGE plpgsql AS $$
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

-- Programs that know version 1 number the events of a change within it. Those that have none yet, which may be of earlier changes of the
-- same lock, get theirs before.
CREATE FUNCTION number_before() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
	n BIGINT;
BEGIN
	SELECT m.n, m.seen INTO n, NEW.numbered FROM move_lock_events(OLD.lock_event, OLD.numbered) m;
	NEW.lock_event := NEW.lock_event + n;
	NEW.numberings := OLD.numberings + 1;
	RETURN NEW;
END
$$;
CREATE TRIGGER number_before BEFORE UPDATE OF lock_event ON state FOR EACH ROW
	WHEN (NEW.numberings = OLD.numberings AND NEW.lock_event > OLD.lock_event) EXECUTE FUNCTION number_before();
