"""What the database itself can do: the same rows by raw SQL, with nothing around it."""

from __future__ import annotations

import threading
import time

import psycopg

_BODY = b"x" * 200
_TABLE = (
    "CREATE TABLE IF NOT EXISTS bare (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, "
    "topic text, mime_type text, headers text, body bytea)"
)
_INSERT = (
    "INSERT INTO bare (id, topic, mime_type, headers, body) "
    "SELECT id, 'order', 'application/octet-stream', '{}', body FROM unnest(%s::text[], %s::bytea[]) m (id, body)"
)
_TAKE = (
    "DELETE FROM bare USING (SELECT seq FROM bare ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED) x "
    "WHERE bare.seq = x.seq RETURNING bare.*"
)


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLE.encode())


def publish(url: str, count: int, each: int, writers: int = 1) -> float:
    """Rows per second, `each` in a transaction, by so many connections."""
    prepare(url)

    def write(connection: psycopg.Connection[tuple[object, ...]]) -> None:
        ids = [f"{number:036d}" for number in range(each)]
        for _ in range(count // each // writers):
            connection.execute(_INSERT.encode(), (ids, [_BODY] * each))
            connection.commit()
        connection.close()

    connections = [psycopg.connect(url) for _ in range(writers)]
    threads = [threading.Thread(target=write, args=(connection,)) for connection in connections]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (time.perf_counter() - begin)


def take(url: str, batch: int) -> float:
    """Rows per second out of the table."""
    with psycopg.connect(url) as connection:
        begin, taken = time.perf_counter(), 0
        while rows := connection.execute(_TAKE.encode(), (batch,)).fetchall():
            connection.commit()
            taken += len(rows)
        return taken / (time.perf_counter() - begin)


def end_to_end(url: str, count: int) -> float:
    """One writes by hundreds while another takes by hundreds."""
    prepare(url)
    begin = time.perf_counter()
    writer = threading.Thread(target=publish, args=(url, count, 100))
    writer.start()
    taken = 0
    with psycopg.connect(url) as connection:
        while taken < count:
            taken += len(connection.execute(_TAKE.encode(), (100,)).fetchall())
            connection.commit()
    writer.join()
    return count / (time.perf_counter() - begin)
