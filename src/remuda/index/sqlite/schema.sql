CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

-- What many messages share: [name, topics, object, mime type] as JSON, and how many messages have it.
CREATE TABLE labels (id INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE, object TEXT, messages INTEGER NOT NULL DEFAULT 0);
CREATE INDEX labels_by_object ON labels (object) WHERE object IS NOT NULL;
CREATE TABLE label_topics (topic TEXT, label INTEGER, PRIMARY KEY (topic, label)) WITHOUT ROWID;

CREATE TABLE messages (
    offset INTEGER PRIMARY KEY, label INTEGER NOT NULL, id TEXT NOT NULL, key TEXT,
    created INTEGER NOT NULL, size INTEGER NOT NULL, timestamp INTEGER
);
CREATE INDEX messages_by_label ON messages (label);
CREATE INDEX messages_by_key ON messages (key) WHERE key IS NOT NULL;

CREATE TABLE copies (
    offset INTEGER NOT NULL, queue INTEGER NOT NULL, state TEXT NOT NULL, life BLOB NOT NULL,
    PRIMARY KEY (offset, queue)
) WITHOUT ROWID;
CREATE INDEX copies_by_state ON copies (queue, state, offset);

CREATE TABLE counters (
    queue INTEGER, state TEXT, messages INTEGER NOT NULL, PRIMARY KEY (queue, state)
) WITHOUT ROWID;

-- Neighbouring messages with their oldest and newest time, which need not be those of the first and the last.
CREATE TABLE spans (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, oldest INTEGER NOT NULL, newest INTEGER NOT NULL);

-- Full-text tables words_<chunk>, each for CHUNK neighbouring offsets.
CREATE TABLE chunks (chunk INTEGER PRIMARY KEY);
