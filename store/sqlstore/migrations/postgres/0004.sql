-- Version 4. What a turn of the scheduler changed is stored as one row of job_changes, from which the other servers follow, too; the rows of
-- the tables for jobs are written soon after, those of many turns at once. Programs that know no version as high would take the tables
-- for complete.
-- beside: 4

DROP TABLE job_changes;
CREATE TABLE job_changes (
	seq    BIGINT PRIMARY KEY,
	origin TEXT NOT NULL,
	at     BIGINT NOT NULL,
	body   BYTEA NOT NULL
);
ALTER TABLE job_changes ALTER COLUMN body SET STORAGE EXTERNAL; -- it is read at once or never: not worth compressing
ALTER TABLE job_changes SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Whoever writes the tables for jobs locks this row. changes is the number of the last row of job_changes that is in them, and job_seq that of
-- the newest job that was made by then.
CREATE TABLE job_folded (
	id      BIGINT PRIMARY KEY CHECK (id = 1),
	changes BIGINT NOT NULL,
	job_seq BIGINT NOT NULL
) WITH (fillfactor = 50);
INSERT INTO job_folded (id, changes, job_seq) SELECT 1, changes, job_seq FROM job_state;
ALTER TABLE job_folded SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
