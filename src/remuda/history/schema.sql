-- What queues did, in slots of three lengths; queue '' stands for all of them together.
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE slots (
    length INTEGER NOT NULL, start INTEGER NOT NULL, queue TEXT NOT NULL,
    published INTEGER NOT NULL, done INTEGER NOT NULL, failed INTEGER NOT NULL, dead INTEGER NOT NULL,
    wait BLOB NOT NULL, took BLOB NOT NULL,
    PRIMARY KEY (length, queue, start)
) WITHOUT ROWID;
CREATE TABLE kinds (
    key TEXT PRIMARY KEY, exception TEXT NOT NULL, place TEXT NOT NULL, sample TEXT NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE failures (
    key TEXT NOT NULL, hour INTEGER NOT NULL, queue TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (key, hour, queue)
) WITHOUT ROWID;
CREATE TABLE parked (
    queue TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, time INTEGER NOT NULL, key TEXT NOT NULL,
    PRIMARY KEY (queue, first)
) WITHOUT ROWID;
CREATE TABLE muted (key TEXT PRIMARY KEY, who TEXT NOT NULL, time INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE starts (
    worker TEXT PRIMARY KEY, name TEXT NOT NULL, host TEXT NOT NULL, process INTEGER NOT NULL, since INTEGER NOT NULL
) WITHOUT ROWID;
