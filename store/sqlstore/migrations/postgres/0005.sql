-- Version 5. A row of job_changes refers to texts that it had before. Programs that know no version as high cannot read that. sum is the
-- checksum at the end of body, which tells rows apart without reading all of them; NULL for those from before.
-- beside: 5
ALTER TABLE job_changes ADD COLUMN sum BIGINT;
