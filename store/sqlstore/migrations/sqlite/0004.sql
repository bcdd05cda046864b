-- Version 4. What became of locks lies here, one row a transaction, until the rows of the tables for locks and of their events are
-- written, those of many transactions at once: see ADR 7.
CREATE TABLE lock_journal (
	id   INTEGER PRIMARY KEY,
	body BLOB NOT NULL
) STRICT;
