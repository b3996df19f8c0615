-- After a dump was restored, transactions have new numbers. What was sent stays sent; all the rest becomes part of one
-- transaction, this one.
LOCK TABLE {p}messages, {p}transactions, {p}progress, {p}lanes IN ACCESS EXCLUSIVE MODE;

CREATE TEMPORARY TABLE remuda_unsent ON COMMIT DROP AS
SELECT m.slot, m.seq AS before, row_number() OVER (ORDER BY t.position, m.seq) AS after
FROM {p}messages m JOIN {p}transactions t ON t.xid = m.xid JOIN ({current}) l ON l.lane = m.lane
WHERE NOT (pg_visible_in_snapshot(m.xid, l.done)
    OR (l.target IS NOT NULL AND pg_visible_in_snapshot(m.xid, l.target) AND (t.position, m.seq) <= (l.position, l.seq)));

UPDATE {p}messages SET xid = '3';
UPDATE {p}messages m SET xid = pg_current_xact_id(), seq = u.after FROM remuda_unsent u WHERE m.slot = u.slot AND m.seq = u.before;
TRUNCATE {p}transactions, {p}progress;
INSERT INTO {p}transactions (slot, xid, position) SELECT last_value, pg_current_xact_id(), nextval('{p}position') FROM {p}slot;
DELETE FROM {p}relays;
UPDATE {p}lanes SET relay = NULL, until = '-infinity', number = 0, done = '4:4:', low = 0, target = NULL, position = 0, seq = 0;
