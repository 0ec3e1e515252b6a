-- Proxies that users delegated, by credential. A row is replaced by a newer proxy, and deleted some time after it expires.
CREATE TABLE proxies (
    credential TEXT PRIMARY KEY,
    -- Seconds since 1970.
    expires INTEGER NOT NULL,
    certificates TEXT NOT NULL,
    key TEXT NOT NULL
) WITHOUT ROWID;
