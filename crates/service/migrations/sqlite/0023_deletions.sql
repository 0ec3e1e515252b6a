-- Copies between the hops of jobs that are to be deleted. A row is there until the copy is deleted, or given up.
CREATE TABLE deletions (
    -- Hop that has written the copy, as its destination.
    file INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    -- Attempts that have failed.
    attempts INTEGER NOT NULL DEFAULT 0,
    -- Time of the next attempt, in milliseconds since 1970.
    not_before INTEGER NOT NULL
);
CREATE INDEX deletions_due ON deletions (not_before);
CREATE INDEX deletions_of_job ON deletions (job);

-- Outcome of the deletion, in JSON.
ALTER TABLE files ADD COLUMN cleanup TEXT;
ALTER TABLE files_archive ADD COLUMN cleanup TEXT;

-- Bytes and limits of a failed attempt, in JSON.
ALTER TABLE attempts ADD COLUMN moved TEXT;
ALTER TABLE attempts_archive ADD COLUMN moved TEXT;
