-- Version 2. What turns of the scheduler changed lies here, one row a turn, until the rows of the tables for jobs are written, those
-- of many turns at once: see ADR 7.
CREATE TABLE job_journal (
	id   INTEGER PRIMARY KEY,
	body BLOB NOT NULL
) STRICT;
