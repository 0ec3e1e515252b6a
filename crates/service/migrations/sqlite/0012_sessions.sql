-- Files that may share a session with other files of their job.
ALTER TABLE files ADD COLUMN shares_session INTEGER NOT NULL DEFAULT 0;
ALTER TABLE files_archive ADD COLUMN shares_session INTEGER NOT NULL DEFAULT 0;
