-- The statements of publishers, relays and administration. Parameters are :named; {p} is the schema and table prefix.

-- name: publish_one
INSERT INTO {p}messages (slot, lane, head, priority, due, expires, produced, id, topic, topics, object, key, mime_type, headers, wire, body)
SELECT s.last_value, coalesce(CAST(:lane AS smallint), mod(CAST(CAST(pg_current_xact_id() AS text) AS bigint), 8)), true,
       CAST(:priority AS smallint), CAST(:due AS bigint), CAST(:expires AS bigint), CAST(:produced AS bigint), CAST(:ids AS text),
       CAST(:topic AS text), CAST(:topics AS text), CAST(:object AS text), CAST(:key AS text), CAST(:mime_type AS text),
       CAST(:headers AS text), CAST(:wire AS bytea), CAST(:bodies AS bytea)
FROM {p}slot s

-- name: publish_shared
INSERT INTO {p}messages (slot, lane, head, priority, due, expires, produced, id, topic, topics, object, key, mime_type, headers, wire, body)
SELECT s.last_value, coalesce(CAST(:lane AS smallint), mod(CAST(CAST(pg_current_xact_id() AS text) AS bigint), 8)), m.row = 1,
       CAST(:priority AS smallint), CAST(:due AS bigint), CAST(:expires AS bigint), CAST(:produced AS bigint), m.id,
       CAST(:topic AS text), CAST(:topics AS text), CAST(:object AS text), CAST(:key AS text), CAST(:mime_type AS text),
       CAST(:headers AS text), CAST(:wire AS bytea), m.body
FROM {p}slot s, unnest(CAST(:ids AS text[]), CAST(:bodies AS bytea[])) WITH ORDINALITY AS m (id, body, row)
ORDER BY m.row

-- name: publish_rows
INSERT INTO {p}messages (slot, lane, head, priority, due, expires, produced, id, topic, topics, object, key, mime_type, headers, wire, body)
SELECT s.last_value, coalesce(m.lane, mod(CAST(CAST(pg_current_xact_id() AS text) AS bigint), 8)), m.row = 1,
       m.priority, m.due, m.expires, m.produced, m.id, m.topic, m.topics, m.object, m.key, m.mime_type, m.headers, m.wire, m.body
FROM {p}slot s, unnest(
    CAST(:lane AS smallint[]), CAST(:priority AS smallint[]), CAST(:due AS bigint[]), CAST(:expires AS bigint[]),
    CAST(:produced AS bigint[]), CAST(:ids AS text[]), CAST(:topic AS text[]), CAST(:topics AS text[]),
    CAST(:object AS text[]), CAST(:key AS text[]), CAST(:mime_type AS text[]), CAST(:headers AS text[]),
    CAST(:wire AS bytea[]), CAST(:bodies AS bytea[])
) WITH ORDINALITY AS m (lane, priority, due, expires, produced, id, topic, topics, object, key, mime_type, headers, wire, body, row)
ORDER BY m.row

-- name: version
SELECT version, lanes FROM {p}schema ORDER BY version DESC LIMIT 1

-- name: exists
SELECT to_regclass('{p}schema') IS NOT NULL

-- name: serialize_leases
SELECT pg_advisory_xact_lock(hashtext('{channel}'))

-- name: register
INSERT INTO {p}relays (relay, until) VALUES (:relay, clock_timestamp() + CAST(:lease AS double precision) * interval '1 second')
ON CONFLICT (relay) DO UPDATE SET until = excluded.until

-- name: forget_dead_relays
DELETE FROM {p}relays WHERE until < clock_timestamp()

-- name: share
SELECT ceil(8 / greatest(count(*), 1)::numeric)::integer FROM {p}relays

-- name: my_lanes
SELECT lane FROM {p}lanes WHERE relay = :relay AND until > clock_timestamp() ORDER BY lane

-- name: free_lanes
SELECT lane FROM {p}lanes WHERE relay IS NULL OR until <= clock_timestamp() ORDER BY lane

-- name: give_up
UPDATE {p}lanes SET relay = NULL, until = '-infinity' WHERE lane = ANY(CAST(:lanes AS smallint[])) AND relay = :relay

-- name: take
-- Take or keep lanes, and bring their rows up to date with the latest progress.
WITH latest AS (
    SELECT DISTINCT ON (p.lane) p.* FROM unnest(CAST(:lanes AS smallint[])) AS wanted (lane)
    JOIN {p}lanes l USING (lane) JOIN {p}progress p ON p.lane = l.lane AND p.number > l.number
    ORDER BY p.lane, p.number DESC
)
UPDATE {p}lanes l SET
    relay = :relay, until = clock_timestamp() + CAST(:lease AS double precision) * interval '1 second',
    number = coalesce(n.number, l.number), done = coalesce(n.done, l.done), low = coalesce(n.low, l.low),
    target = CASE WHEN n.number IS NULL THEN l.target ELSE n.target END,
    target_low = coalesce(n.target_low, l.target_low), position = coalesce(n.position, l.position), seq = coalesce(n.seq, l.seq)
FROM {p}lanes o LEFT JOIN latest n ON n.lane = o.lane
WHERE l.lane = o.lane AND o.lane = ANY(CAST(:lanes AS smallint[]))
RETURNING l.lane, CAST(l.done AS text), l.low, CAST(l.target AS text), l.target_low, l.position, l.seq

-- name: renew
WITH me AS (
    UPDATE {p}relays SET until = clock_timestamp() + CAST(:lease AS double precision) * interval '1 second' WHERE relay = :relay RETURNING 1
), kept AS (
    UPDATE {p}lanes SET until = clock_timestamp() + CAST(:lease AS double precision) * interval '1 second'
    WHERE relay = :relay AND until > clock_timestamp() RETURNING 1
)
SELECT (SELECT count(*) FROM me), (SELECT count(*) FROM kept),
       (SELECT count(*) FROM {p}relays WHERE until > clock_timestamp()),
       (SELECT count(*) FROM {p}lanes WHERE relay IS NULL OR until <= clock_timestamp())

-- name: unregister
DELETE FROM {p}relays WHERE relay = :relay

-- name: keys_held
SELECT DISTINCT key FROM {p}held WHERE status = 'delayed' AND lane = ANY(CAST(:lanes AS smallint[])) AND key IS NOT NULL

-- name: snapshot
SELECT CAST(pg_current_snapshot() AS text), CASE WHEN is_called THEN last_value ELSE 0 END FROM {p}position

-- name: read
-- What target sees and done does not: transactions that were running at done, and those with higher numbers. Of these,
-- the few whose position is older than done are found by number, the others by position. A transaction without
-- messages in these lanes gives a row without a message, so that the reader can move past it.
SELECT m.seq, m.lane, t.position, m.id, m.topic, m.body, m.key, m.object, m.mime_type, m.headers, m.priority, m.due, m.expires,
       m.produced, m.topics, m.created, m.wire
FROM (
    (SELECT xid, position FROM {p}transactions
     WHERE xid = ANY(CAST(:running AS xid8[])) AND position >= :position AND pg_visible_in_snapshot(xid, CAST(:target AS pg_snapshot)))
    UNION ALL
    (SELECT xid, position FROM {p}transactions
     WHERE xid >= CAST(:xmax AS xid8) AND position BETWEEN :position AND :low AND :position <= :low
       AND pg_visible_in_snapshot(xid, CAST(:target AS pg_snapshot)))
    UNION ALL
    (SELECT xid, position FROM {p}transactions
     WHERE position >= :above AND xid >= CAST(:xmax AS xid8) AND pg_visible_in_snapshot(xid, CAST(:target AS pg_snapshot))
     ORDER BY position LIMIT :count)
    ORDER BY position LIMIT :count
) t
LEFT JOIN LATERAL (
    SELECT * FROM {p}messages m
    WHERE m.xid = t.xid AND m.seq > CASE WHEN t.position = :position THEN :seq ELSE 0 END AND m.lane = ANY(CAST(:lanes AS smallint[]))
    ORDER BY m.seq LIMIT :count
) m ON true
ORDER BY t.position, m.seq LIMIT :count

-- name: progress
-- If another relay is taking the lanes over, this waits for it, and then inserts nothing.
WITH mine AS (SELECT lane FROM {p}lanes WHERE lane = ANY(CAST(:lanes AS smallint[])) AND relay = :relay FOR SHARE)
INSERT INTO {p}progress (slot, lane, done, low, target, target_low, position, seq)
SELECT s.last_value, mine.lane, CAST(:done AS pg_snapshot), :low, CAST(CAST(:target AS text) AS pg_snapshot), :target_low, :position, :seq
FROM mine, {p}slot s
RETURNING lane

-- name: hold
INSERT INTO {p}held (lane, status, attempts, next_at, expires_at, reason, priority, created, due, expires, produced, id, topic, topics,
                     object, key, mime_type, headers, wire, body)
VALUES (:lane, :status, :attempts, clock_timestamp() + CAST(:wait AS double precision) * interval '1 second',
        clock_timestamp() + CAST(:keep AS double precision) * interval '1 second', :reason, :priority, :created, :due, :expires, :produced,
        :id, :topic, :topics, :object, :key, :mime_type, :headers, :wire, :body)

-- name: held_due
-- Only the first message of each key may be sent.
SELECT h.number, h.lane, h.attempts, h.id, h.topic, h.body, h.key, h.object, h.mime_type, h.headers, h.priority, h.due, h.expires,
       h.produced, h.topics, h.created, h.wire
FROM {p}held h
WHERE h.status = 'delayed' AND h.lane = ANY(CAST(:lanes AS smallint[])) AND h.next_at <= clock_timestamp()
  AND NOT EXISTS (SELECT FROM {p}held b WHERE b.status = 'delayed' AND b.lane = h.lane AND b.key = h.key AND b.number < h.number)
ORDER BY h.number LIMIT :count

-- name: next_held
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::double precision FROM {p}held h
WHERE h.status = 'delayed' AND h.lane = ANY(CAST(:lanes AS smallint[]))
  AND NOT EXISTS (SELECT FROM {p}held b WHERE b.status = 'delayed' AND b.lane = h.lane AND b.key = h.key AND b.number < h.number)

-- name: settle
UPDATE {p}held SET status = :status, attempts = :attempts, reason = :reason,
    next_at = clock_timestamp() + CAST(:wait AS double precision) * interval '1 second',
    expires_at = clock_timestamp() + CAST(:keep AS double precision) * interval '1 second'
WHERE number = :number

-- name: retry
UPDATE {p}held SET status = 'delayed', attempts = 0, next_at = clock_timestamp(), expires_at = NULL
WHERE (status = 'failed' OR (status = 'delayed' AND next_at > clock_timestamp()))
  AND (CAST(:ids AS text[]) IS NULL OR id = ANY(CAST(:ids AS text[])))
RETURNING id

-- name: wake
SELECT pg_notify('{channel}', '')

-- name: current
-- The progress of each lane: its own row, or a newer one in progress.
SELECT l.lane, coalesce(n.done, l.done) AS done, CASE WHEN n.lane IS NULL THEN l.target ELSE n.target END AS target,
       coalesce(n.position, l.position) AS position, coalesce(n.seq, l.seq) AS seq
FROM {p}lanes l LEFT JOIN LATERAL (
    SELECT * FROM {p}progress p WHERE p.lane = l.lane AND p.number > l.number ORDER BY p.number DESC LIMIT 1
) n ON true

-- name: find
SELECT m.id, m.topic, m.key, m.created, 0 AS attempts, NULL AS reason,
       CASE WHEN pg_visible_in_snapshot(m.xid, l.done)
              OR (l.target IS NOT NULL AND pg_visible_in_snapshot(m.xid, l.target) AND (t.position, m.seq) <= (l.position, l.seq))
            THEN 'succeeded' ELSE 'scheduled' END AS status, NULL AS next_at
FROM {p}messages m JOIN {p}transactions t ON t.xid = m.xid JOIN ({current}) l ON l.lane = m.lane
WHERE m.id = :id

-- name: find_held
SELECT id, topic, key, created, attempts, reason, status, CASE WHEN status = 'delayed' THEN next_at END FROM {p}held WHERE id = :id ORDER BY number DESC LIMIT 1

-- name: list_held
SELECT id, topic, key, created, attempts, reason, status, CASE WHEN status = 'delayed' THEN next_at END FROM {p}held
WHERE status = :status ORDER BY number DESC LIMIT :count

-- name: list_sent
SELECT * FROM (
    SELECT m.id, m.topic, m.key, m.created, 0 AS attempts, NULL AS reason,
           CASE WHEN pg_visible_in_snapshot(m.xid, l.done)
                  OR (l.target IS NOT NULL AND pg_visible_in_snapshot(m.xid, l.target) AND (t.position, m.seq) <= (l.position, l.seq))
                THEN 'succeeded' ELSE 'scheduled' END AS status, NULL AS next_at
    FROM {p}transactions t JOIN {p}messages m ON t.xid = m.xid JOIN ({current}) l ON l.lane = m.lane
    WHERE NOT EXISTS (SELECT FROM {p}held h WHERE h.id = m.id)
    ORDER BY t.position DESC, m.seq DESC
) listed WHERE status = :status LIMIT :count

-- name: count_held
SELECT status, count(*) FROM {p}held GROUP BY status

-- name: count_sent
SELECT count(*), count(*) FILTER (WHERE pg_visible_in_snapshot(m.xid, l.done)
    OR (l.target IS NOT NULL AND pg_visible_in_snapshot(m.xid, l.target) AND (t.position, m.seq) <= (l.position, l.seq)))
FROM {p}messages m JOIN {p}transactions t ON t.xid = m.xid JOIN ({current}) l ON l.lane = m.lane

-- name: relays
SELECT r.relay, array_agg(l.lane ORDER BY l.lane) FILTER (WHERE l.lane IS NOT NULL)
FROM {p}relays r LEFT JOIN {p}lanes l ON l.relay = r.relay AND l.until > clock_timestamp()
WHERE r.until > clock_timestamp() GROUP BY r.relay ORDER BY r.relay

-- name: collect_held
DELETE FROM {p}held WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {p}held WHERE expires_at < clock_timestamp() ORDER BY expires_at LIMIT :count FOR UPDATE SKIP LOCKED))
RETURNING status

-- name: collect_inbox
DELETE FROM {p}inbox WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {p}inbox WHERE handled < clock_timestamp() - CAST(:keep AS double precision) * interval '1 second'
    ORDER BY handled LIMIT :count FOR UPDATE SKIP LOCKED))

-- name: slot
SELECT last_value FROM {p}slot

-- name: rotate
SELECT setval('{p}slot', :slot)

-- name: lock_slot
LOCK TABLE {p}messages_{slot}, {p}transactions_{slot}, {p}progress_{slot} IN ACCESS EXCLUSIVE MODE

-- name: slot_is_old
-- Whether nothing in a slot is younger than the retention, unsent, or the only record of a lane's progress.
SELECT NOT EXISTS (SELECT FROM {p}lanes l, {p}transactions_{slot} t
                   WHERE t.xid >= pg_snapshot_xmin(l.done) AND NOT pg_visible_in_snapshot(t.xid, l.done))
   AND NOT EXISTS (SELECT FROM {p}lanes l, {p}messages_{slot} m
                   WHERE m.lane = l.lane AND m.xid >= pg_snapshot_xmin(l.done) AND NOT pg_visible_in_snapshot(m.xid, l.done))
   AND NOT EXISTS (SELECT FROM {p}progress_{slot} p JOIN {p}lanes l ON l.lane = p.lane WHERE p.number > l.number)
   AND NOT EXISTS (SELECT FROM {p}messages_{slot} WHERE created > clock_timestamp() - CAST(:keep AS double precision) * interval '1 second')

-- name: slot_size
SELECT count(*) FROM {p}messages_{slot}

-- name: slot_began
SELECT extract(epoch FROM clock_timestamp() - min(created))::double precision FROM {p}messages_{slot}

-- name: truncate_slot
TRUNCATE {p}messages_{slot}, {p}transactions_{slot}, {p}progress_{slot}

-- name: inbox
INSERT INTO {p}inbox (consumer, id) VALUES (:consumer, :id) ON CONFLICT DO NOTHING RETURNING 1

-- name: inbox_lock
SELECT pg_advisory_lock(hashtextextended(:name, 0))

-- name: inbox_unlock
SELECT pg_advisory_unlock(hashtextextended(:name, 0))

-- name: inbox_known
SELECT 1 FROM {p}inbox WHERE consumer = :consumer AND id = :id

-- name: inbox_answer
UPDATE {p}inbox SET answer = :answer WHERE consumer = :consumer AND id = :id

-- name: inbox_answered
SELECT answer FROM {p}inbox WHERE consumer = :consumer AND id = :id
