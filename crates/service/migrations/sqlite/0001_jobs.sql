-- Jobs that have not been archived. Times are milliseconds since 1970, UTC.
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    credential TEXT NOT NULL,
    owner TEXT NOT NULL,
    vo TEXT NOT NULL,
    priority INTEGER NOT NULL,
    submitted INTEGER NOT NULL,
    expires INTEGER,
    finished INTEGER,
    options TEXT NOT NULL,
    metadata TEXT,
    idempotency_key TEXT,
    source_endpoint TEXT,
    destination_endpoint TEXT,
    -- Numbers of entries, by outcome, and of files under way.
    is_open INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    entries_finished INTEGER NOT NULL DEFAULT 0,
    entries_failed INTEGER NOT NULL DEFAULT 0,
    entries_cancelled INTEGER NOT NULL DEFAULT 0,
    files_active INTEGER NOT NULL DEFAULT 0,
    UNIQUE (credential, idempotency_key)
);
CREATE INDEX jobs_by_vo ON jobs (vo, state);
CREATE INDEX jobs_running ON jobs (number) WHERE finished IS NULL;
CREATE INDEX jobs_ended ON jobs (finished) WHERE finished IS NOT NULL;

CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    entry INTEGER NOT NULL,
    state TEXT NOT NULL,
    vo TEXT NOT NULL,
    priority INTEGER NOT NULL,
    submitted INTEGER NOT NULL,
    source TEXT NOT NULL,
    destination TEXT NOT NULL,
    source_endpoint TEXT NOT NULL,
    destination_endpoint TEXT NOT NULL,
    activity TEXT NOT NULL,
    strategy TEXT,
    size INTEGER,
    checksum TEXT,
    is_reserved INTEGER NOT NULL,
    deadline INTEGER,
    metadata TEXT,
    fts TEXT,
    started INTEGER,
    finished INTEGER,
    not_before INTEGER NOT NULL DEFAULT 0,
    starts INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    worker TEXT,
    rationale TEXT,
    failure TEXT,
    moved TEXT
);
CREATE INDEX files_of_job ON files (job, entry);
-- Files that have ended are most of the table, and are found by their job.
CREATE INDEX files_running ON files (state, source_endpoint, destination_endpoint)
    WHERE state IN ('waiting', 'held', 'active');

CREATE TABLE attempts (
    file INTEGER NOT NULL,
    number INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    worker TEXT,
    failure TEXT NOT NULL,
    PRIMARY KEY (file, number)
) WITHOUT ROWID;

-- Change feed.
CREATE TABLE changes (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    job TEXT NOT NULL,
    file INTEGER,
    file_state TEXT,
    job_state TEXT
);

CREATE TABLE settings (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    by TEXT NOT NULL,
    action TEXT NOT NULL,
    value TEXT NOT NULL
);

-- Archive: rows of jobs that have ended long ago, with the columns of the tables above.
CREATE TABLE jobs_archive AS SELECT * FROM jobs WHERE 0;
CREATE UNIQUE INDEX archived_jobs ON jobs_archive (id);
CREATE TABLE files_archive AS SELECT * FROM files WHERE 0;
CREATE INDEX archived_files ON files_archive (job, entry);
CREATE TABLE attempts_archive AS SELECT * FROM attempts WHERE 0;
CREATE INDEX archived_attempts ON attempts_archive (file);
