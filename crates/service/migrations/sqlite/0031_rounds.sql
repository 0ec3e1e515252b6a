-- Rounds of agents that monitor a peer: the last one of each minute.
CREATE TABLE rounds (
    observer TEXT NOT NULL,
    peer TEXT NOT NULL,
    minute INTEGER NOT NULL,
    round TEXT NOT NULL,
    PRIMARY KEY (observer, peer, minute)
) WITHOUT ROWID;
CREATE INDEX rounds_by_minute ON rounds (minute);
