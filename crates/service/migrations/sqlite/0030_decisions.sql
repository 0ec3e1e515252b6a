-- Decisions about files, with their reasons: the choice of a replica, another attempt, another replica.
CREATE TABLE decisions (
    file INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (file, number)
) WITHOUT ROWID;
CREATE TABLE decisions_archive AS SELECT * FROM decisions WHERE 0;
CREATE INDEX archived_decisions ON decisions_archive (file, number);

-- Files that can give their place to another replica, by the endpoint for which they wait.
CREATE INDEX files_replaceable ON files (source_endpoint, number)
    WHERE state IN ('waiting', 'held') AND strategy IS NOT NULL;
