-- Prefixes of jobs whose files are being listed. A row is deleted when its listing has ended, or its job.
CREATE TABLE prefixes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    -- Pattern of the files, as JSON.
    file TEXT NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    not_before INTEGER NOT NULL DEFAULT 0,
    failure TEXT
);
CREATE INDEX prefixes_of_job ON prefixes (job);

-- Number of the rows above of a job.
ALTER TABLE jobs ADD COLUMN listing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs_archive ADD COLUMN listing INTEGER NOT NULL DEFAULT 0;

-- Prefix beneath which a file was found. A listing that starts again finds the files that it has added before.
ALTER TABLE files ADD COLUMN prefix INTEGER;
ALTER TABLE files_archive ADD COLUMN prefix INTEGER;
CREATE UNIQUE INDEX files_found ON files (prefix, destination) WHERE prefix IS NOT NULL;
