-- Version 3. A lease of the scheduler has with it the tokens of the locks that were taken for it: a JSON object, or NULL for none. Programs
-- that know no version as high grant leases without.
-- beside: 1

ALTER TABLE leases ADD COLUMN lock_tokens TEXT;
