-- Tokens of users for storages. A row is deleted when its job ends, and never goes to the archive.
CREATE TABLE credentials (
    job TEXT NOT NULL,
    number INTEGER NOT NULL,
    source TEXT,
    destination TEXT,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;

-- Number of the credentials of a file. The archive has the same columns.
ALTER TABLE files ADD COLUMN credentials INTEGER;
ALTER TABLE files_archive ADD COLUMN credentials INTEGER;
