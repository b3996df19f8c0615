-- SQLite has one writer at a time, so the order of seq is the order of commits. {p} is the prefix of all names.

CREATE TABLE {p}schema (
    version INTEGER NOT NULL,
    lanes INTEGER NOT NULL,
    installed REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400)
);

CREATE TABLE {p}messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    created REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400),
    due INTEGER,
    expires INTEGER,
    produced INTEGER,
    id TEXT NOT NULL,
    topic TEXT NOT NULL,
    topics TEXT,
    object TEXT,
    key TEXT,
    mime_type TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX {p}messages_id ON {p}messages (id);

CREATE TABLE {p}lanes (
    lane INTEGER PRIMARY KEY,
    relay TEXT,
    until REAL NOT NULL DEFAULT 0,
    seq INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE {p}relays (
    relay TEXT PRIMARY KEY,
    until REAL NOT NULL
);

-- The few messages that the broker refused, and those of the same key behind them.
CREATE TABLE {p}held (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    lane INTEGER NOT NULL,
    status TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    next_at REAL,
    expires_at REAL,
    reason TEXT,
    priority INTEGER NOT NULL,
    created REAL NOT NULL,
    due INTEGER,
    expires INTEGER,
    produced INTEGER,
    id TEXT NOT NULL,
    topic TEXT NOT NULL,
    topics TEXT,
    object TEXT,
    key TEXT,
    mime_type TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX {p}held_lane ON {p}held (lane, number) WHERE status = 'delayed';
CREATE INDEX {p}held_id ON {p}held (id);
CREATE INDEX {p}held_expires ON {p}held (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE {p}inbox (
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    handled REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400),
    claim REAL,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;
CREATE INDEX {p}inbox_handled ON {p}inbox (handled);

INSERT INTO {p}lanes (lane) VALUES (0), (1), (2), (3), (4), (5), (6), (7);
INSERT INTO {p}schema (version, lanes) VALUES (1, 8);
