-- A service that starts reads the outcomes of the last hour, for the statistics of links.
CREATE INDEX files_arrived ON files (finished) WHERE state = 'finished';
CREATE INDEX attempts_ended ON attempts (ended);
