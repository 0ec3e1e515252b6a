-- Files of the archive, by their number.
CREATE UNIQUE INDEX archived_files_by_number ON files_archive (number);
