-- An application only ever appends: to messages, and at commit to transactions, which records the order of commits.
-- Relays record their position in progress. All three tables rotate over four slots, and a slot is emptied by TRUNCATE,
-- so that there are no dead rows, however long other transactions run.

CREATE TABLE {p}schema (
    version integer NOT NULL,
    lanes smallint NOT NULL,
    installed timestamptz NOT NULL DEFAULT now()
);

CREATE SEQUENCE {p}slot MINVALUE 0 START 0;
CREATE SEQUENCE {p}seq;
CREATE SEQUENCE {p}position;
-- When relays were last notified, in milliseconds; a sequence, since it is read and set outside any transaction.
CREATE SEQUENCE {p}woken MINVALUE 0 START 0;
SELECT setval('{p}slot', 0), setval('{p}woken', 0);

CREATE TABLE {p}messages (
    slot smallint NOT NULL,
    lane smallint NOT NULL,
    head boolean NOT NULL,
    priority smallint NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq bigint NOT NULL DEFAULT nextval('{p}seq'),
    created timestamptz NOT NULL DEFAULT clock_timestamp(),
    due bigint,
    expires bigint,
    produced bigint,
    id text NOT NULL,
    topic text NOT NULL,
    topics text,
    object text,
    key text,
    mime_type text NOT NULL,
    headers text NOT NULL,
    body bytea NOT NULL
) PARTITION BY LIST (slot);
CREATE INDEX {n}messages_xid ON {p}messages (xid, seq);
CREATE INDEX {n}messages_id ON {p}messages (id);

CREATE TABLE {p}transactions (
    slot smallint NOT NULL,
    xid xid8 NOT NULL,
    position bigint NOT NULL
) PARTITION BY LIST (slot);
CREATE INDEX {n}transactions_xid ON {p}transactions (xid, position);
CREATE INDEX {n}transactions_position ON {p}transactions (position);

CREATE TABLE {p}progress (
    slot smallint NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    lane smallint NOT NULL,
    done pg_snapshot NOT NULL,
    low bigint NOT NULL,
    target pg_snapshot,
    target_low bigint NOT NULL,
    position bigint NOT NULL,
    seq bigint NOT NULL
) PARTITION BY LIST (slot);
CREATE INDEX {n}progress_lane ON {p}progress (lane, number);

DO $$
BEGIN
    FOR slot IN 0..3 LOOP
        EXECUTE format('CREATE TABLE {p}messages_%s PARTITION OF {p}messages FOR VALUES IN (%s)', slot, slot);
        EXECUTE format('CREATE TABLE {p}transactions_%s PARTITION OF {p}transactions FOR VALUES IN (%s)', slot, slot);
        EXECUTE format('CREATE TABLE {p}progress_%s PARTITION OF {p}progress FOR VALUES IN (%s)', slot, slot);
    END LOOP;
END $$;

-- done: everything that this snapshot sees was sent. target, position, seq: of what only target sees, everything up to
-- there was sent too.
-- low: transactions that began after done have higher positions.
CREATE TABLE {p}lanes (
    lane smallint PRIMARY KEY,
    relay text,
    until timestamptz NOT NULL DEFAULT '-infinity',
    number bigint NOT NULL DEFAULT 0,
    done pg_snapshot NOT NULL DEFAULT '1:1:',
    low bigint NOT NULL DEFAULT 0,
    target pg_snapshot,
    target_low bigint NOT NULL DEFAULT 0,
    position bigint NOT NULL DEFAULT 0,
    seq bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE {p}relays (
    relay text PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The few messages that the broker refused, and those of the same key behind them.
CREATE TABLE {p}held (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane smallint NOT NULL,
    status text NOT NULL,
    attempts integer NOT NULL,
    next_at timestamptz,
    expires_at timestamptz,
    reason text,
    priority smallint NOT NULL,
    created timestamptz NOT NULL,
    due bigint,
    expires bigint,
    produced bigint,
    id text NOT NULL,
    topic text NOT NULL,
    topics text,
    object text,
    key text,
    mime_type text NOT NULL,
    headers text NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX {n}held_lane ON {p}held (lane, number) WHERE status = 'delayed';
CREATE INDEX {n}held_id ON {p}held (id);
CREATE INDEX {n}held_expires ON {p}held (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE {p}inbox (
    consumer text NOT NULL,
    id text NOT NULL,
    handled timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, id)
);
CREATE INDEX {n}inbox_handled ON {p}inbox (handled);

-- Runs when a transaction commits, so positions are in the order of commits. NOTIFY takes a lock that all commits share,
-- so it is sent at most every 20 ms; a relay that was notified keeps polling for a while.
CREATE FUNCTION {p}commit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint;
    woken_ms bigint;
BEGIN
    IF current_setting('remuda.committing', true) = NEW.xid::text THEN
        RETURN NULL;
    END IF;
    PERFORM set_config('remuda.committing', NEW.xid::text, true);
    INSERT INTO {p}transactions (slot, xid, position) VALUES (NEW.slot, NEW.xid, nextval('{p}position'));
    now_ms := extract(epoch FROM clock_timestamp()) * 1000;
    woken_ms := coalesce(pg_sequence_last_value('{p}woken'), 0);
    IF now_ms < woken_ms OR now_ms > woken_ms + 20 THEN
        woken_ms := setval('{p}woken', now_ms);
        PERFORM pg_notify('{channel}', '');
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER {n}commit AFTER INSERT ON {p}messages
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.head) EXECUTE FUNCTION {p}commit();

INSERT INTO {p}lanes (lane) SELECT generate_series(0, 8 - 1);
INSERT INTO {p}schema (version, lanes) VALUES (1, 8);
