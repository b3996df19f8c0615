-- The statements of publishers, relays and administration. Parameters are :named, lists as JSON; {p} is the table
-- prefix, {now} the time in seconds.

-- name: publish
INSERT INTO {p}messages (lane, priority, due, expires, produced, id, topic, topics, object, key, mime_type, headers, wire, body)
VALUES (:lane, :priority, :due, :expires, :produced, :ids, :topic, :topics, :object, :key, :mime_type, :headers, :wire, :bodies)

-- name: version
SELECT version, lanes FROM {p}schema ORDER BY version DESC LIMIT 1

-- name: exists
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{p}schema'

-- name: register
INSERT INTO {p}relays (relay, until) VALUES (:relay, {now} + :lease) ON CONFLICT (relay) DO UPDATE SET until = excluded.until

-- name: forget_dead_relays
DELETE FROM {p}relays WHERE until < {now}

-- name: share
SELECT (8 + max(count(*), 1) - 1) / max(count(*), 1) FROM {p}relays

-- name: my_lanes
SELECT lane FROM {p}lanes WHERE relay = :relay AND until > {now} ORDER BY lane

-- name: free_lanes
SELECT lane FROM {p}lanes WHERE relay IS NULL OR until <= {now} ORDER BY lane

-- name: give_up
UPDATE {p}lanes SET relay = NULL, until = 0 WHERE lane IN (SELECT value FROM json_each(:lanes)) AND relay = :relay

-- name: take
UPDATE {p}lanes SET relay = :relay, until = {now} + :lease WHERE lane IN (SELECT value FROM json_each(:lanes)) RETURNING lane, seq

-- name: renew_relay
UPDATE {p}relays SET until = {now} + :lease WHERE relay = :relay

-- name: renew_lanes
UPDATE {p}lanes SET until = {now} + :lease WHERE relay = :relay AND until > {now}

-- name: crowd
SELECT (SELECT count(*) FROM {p}relays WHERE until > {now}), (SELECT count(*) FROM {p}lanes WHERE relay IS NULL OR until <= {now})

-- name: unregister
DELETE FROM {p}relays WHERE relay = :relay

-- name: keys_held
SELECT DISTINCT key FROM {p}held WHERE status = 'delayed' AND lane IN (SELECT value FROM json_each(:lanes)) AND key IS NOT NULL

-- name: read
SELECT seq, lane, seq, id, topic, body, key, object, mime_type, headers, priority, due, expires, produced, topics, created, wire
FROM {p}messages WHERE seq > :seq AND lane IN (SELECT value FROM json_each(:lanes)) ORDER BY seq LIMIT :count

-- name: newest
SELECT coalesce(max(seq), 0) FROM {p}messages

-- name: progress
UPDATE {p}lanes SET seq = :seq WHERE lane IN (SELECT value FROM json_each(:lanes)) AND relay = :relay AND seq <= :seq

-- name: hold
INSERT INTO {p}held (lane, status, attempts, next_at, expires_at, reason, priority, created, due, expires, produced, id, topic, topics,
                     object, key, mime_type, headers, wire, body)
VALUES (:lane, :status, :attempts, {now} + :wait, {now} + :keep, :reason, :priority, :created, :due, :expires, :produced,
        :id, :topic, :topics, :object, :key, :mime_type, :headers, :wire, :body)

-- name: held_due
-- Only the first message of each key may be sent.
SELECT number, lane, attempts, id, topic, body, key, object, mime_type, headers, priority, due, expires, produced, topics, created, wire
FROM {p}held h
WHERE status = 'delayed' AND lane IN (SELECT value FROM json_each(:lanes)) AND next_at <= {now}
  AND NOT EXISTS (SELECT 1 FROM {p}held b WHERE b.status = 'delayed' AND b.lane = h.lane AND b.key = h.key AND b.number < h.number)
ORDER BY number LIMIT :count

-- name: next_held
SELECT max(min(next_at) - {now}, 0) FROM {p}held h
WHERE status = 'delayed' AND lane IN (SELECT value FROM json_each(:lanes))
  AND NOT EXISTS (SELECT 1 FROM {p}held b WHERE b.status = 'delayed' AND b.lane = h.lane AND b.key = h.key AND b.number < h.number)

-- name: settle
UPDATE {p}held SET status = :status, attempts = :attempts, reason = :reason, next_at = {now} + :wait, expires_at = {now} + :keep
WHERE number = :number

-- name: retry
UPDATE {p}held SET status = 'delayed', attempts = 0, next_at = {now}, expires_at = NULL
WHERE (status = 'failed' OR (status = 'delayed' AND next_at > {now})) AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
RETURNING id

-- name: find
SELECT m.id, m.topic, m.key, m.created, 0, NULL, CASE WHEN m.seq <= l.seq THEN 'succeeded' ELSE 'scheduled' END, NULL
FROM {p}messages m JOIN {p}lanes l ON l.lane = m.lane WHERE m.id = :id

-- name: find_held
SELECT id, topic, key, created, attempts, reason, status, CASE WHEN status = 'delayed' THEN next_at END FROM {p}held
WHERE id = :id ORDER BY number DESC LIMIT 1

-- name: list_held
SELECT id, topic, key, created, attempts, reason, status, CASE WHEN status = 'delayed' THEN next_at END FROM {p}held
WHERE status = :status ORDER BY number DESC LIMIT :count

-- name: list_sent
SELECT * FROM (
    SELECT m.id, m.topic, m.key, m.created, 0, NULL, CASE WHEN m.seq <= l.seq THEN 'succeeded' ELSE 'scheduled' END AS status, NULL
    FROM {p}messages m JOIN {p}lanes l ON l.lane = m.lane
    WHERE NOT EXISTS (SELECT 1 FROM {p}held h WHERE h.id = m.id) ORDER BY m.seq DESC
) WHERE status = :status LIMIT :count

-- name: count_held
SELECT status, count(*) FROM {p}held GROUP BY status

-- name: count_sent
SELECT count(*), coalesce(sum(m.seq <= l.seq), 0) FROM {p}messages m JOIN {p}lanes l ON l.lane = m.lane

-- name: relays
SELECT r.relay, json_group_array(l.lane) FILTER (WHERE l.lane IS NOT NULL)
FROM {p}relays r LEFT JOIN {p}lanes l ON l.relay = r.relay AND l.until > {now}
WHERE r.until > {now} GROUP BY r.relay ORDER BY r.relay

-- name: collect_held
DELETE FROM {p}held WHERE number IN (SELECT number FROM {p}held WHERE expires_at < {now} ORDER BY expires_at LIMIT :count) RETURNING status

-- name: collect_inbox
DELETE FROM {p}inbox WHERE (consumer, id) IN (SELECT consumer, id FROM {p}inbox WHERE handled < {now} - :keep ORDER BY handled LIMIT :count)

-- name: collect_sent
DELETE FROM {p}messages WHERE seq IN (
    SELECT m.seq FROM {p}messages m JOIN {p}lanes l ON l.lane = m.lane
    WHERE m.seq <= (SELECT max(seq) FROM {p}lanes) AND m.seq <= l.seq AND m.created < {now} - :keep ORDER BY m.seq LIMIT :count)

-- name: inbox
INSERT INTO {p}inbox (consumer, id) VALUES (:consumer, :id) ON CONFLICT DO NOTHING RETURNING 1

-- name: inbox_claim
INSERT INTO {p}inbox (consumer, id, claim) VALUES (:consumer, :id, {now} + :lease)
ON CONFLICT (consumer, id) DO UPDATE SET claim = excluded.claim WHERE claim < {now} RETURNING 1

-- name: inbox_known
SELECT claim IS NULL FROM {p}inbox WHERE consumer = :consumer AND id = :id

-- name: inbox_done
UPDATE {p}inbox SET claim = NULL, handled = {now}, answer = :answer WHERE consumer = :consumer AND id = :id

-- name: inbox_undo
DELETE FROM {p}inbox WHERE consumer = :consumer AND id = :id AND claim IS NOT NULL

-- name: inbox_answer
UPDATE {p}inbox SET answer = :answer WHERE consumer = :consumer AND id = :id

-- name: inbox_answered
SELECT answer FROM {p}inbox WHERE consumer = :consumer AND id = :id
