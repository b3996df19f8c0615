"""The outbox's rows."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from benchmarks.effort import Effort
from benchmarks.outbox import bare, peers
from benchmarks.results import Result, latency_result, rate_result
from benchmarks.scratch import scratch
from remuda import Bus
from remuda.outbox import Outbox
from tests.servers.postgres import Postgres, running_postgres

PUBLISH_1, PUBLISH_100 = "outbox/publish-1", "outbox/publish-100"
RELAY, END_TO_END, LATENCY = "outbox/relay", "outbox/end-to-end", "outbox/latency"
_BODY = b"x" * 200
_WRITERS = 8


def is_outbox(result: Result) -> bool:
    return result.name.startswith("outbox/")


def publish_1(effort: Effort) -> Result:
    """Eight committers, one message in each transaction."""
    count = _scaled(effort, 4000)
    with running_postgres() as server:
        ours, limit = _medians(
            effort,
            lambda: _on(server, lambda url: _publish(url, count, 1, _WRITERS)),
            lambda: _on(server, lambda url: bare.publish(url, count, 1, _WRITERS)),
        )
        others = _peers(server, count // 4, 1, _WRITERS)
    return rate_result(PUBLISH_1, ours, others, limit, {"writers": _WRITERS, "count": count})


def publish_100(effort: Effort) -> Result:
    count = _scaled(effort, 30_000)
    with running_postgres() as server:
        ours, limit = _medians(
            effort,
            lambda: _on(server, lambda url: _publish(url, count, 100, 1)),
            lambda: _on(server, lambda url: bare.publish(url, count, 100)),
        )
        others = _peers(server, count // 5, 100, 1)
    return rate_result(PUBLISH_100, ours, others, limit, {"writers": 1, "count": count})


def relay(effort: Effort) -> Result:
    """A backlog to a durable broker; the limit takes the same rows out of a table by thousands."""
    count = _scaled(effort, 40_000)

    def limit(url: str) -> float:
        bare.publish(url, count, 100)
        return bare.take(url, 1000)

    with running_postgres() as server:
        ours, raw = _medians(effort, lambda: _on(server, lambda url: _relay(url, count)), lambda: _on(server, limit))
    return rate_result(RELAY, ours, {}, raw, {"count": count})


def end_to_end(effort: Effort) -> Result:
    """From the first insert to the last handler, a hundred in each transaction."""
    count = _scaled(effort, 30_000)
    with running_postgres() as server:
        ours, limit = _medians(
            effort,
            lambda: _on(server, lambda url: _end_to_end(url, count)),
            lambda: _on(server, lambda url: bare.end_to_end(url, count)),
        )
        few = count // 10 // 100 * 100
        by_batch = {str(batch): _on(server, partial(_pgqueuer, few, batch)) for batch in (100, 1000)}
        others = {
            "pgqueuer": max(by_batch.values()),
            "procrastinate": _on(server, lambda url: peers.procrastinate_end_to_end(url, max(few // 10, 100))),
        }
    return rate_result(END_TO_END, ours, others, limit, {"count": count, "pgqueuer_by_batch": by_batch})


def latency(effort: Effort) -> Result:
    """From the commit to the handler, one message at a time on an idle outbox."""
    with running_postgres() as server:
        waits = sorted(_on(server, lambda url: _waits(url, 100 if effort.rounds > 1 else 30)))
    p50, p99 = statistics.median(waits), waits[int(len(waits) * 0.99)]
    return latency_result(LATENCY, round(p50, 2), {}, {"p50": round(p50, 2), "p99": round(p99, 2), "count": len(waits)})


OUTBOX_ROWS: dict[str, Callable[[Effort], Result]] = {
    PUBLISH_1: publish_1, PUBLISH_100: publish_100, RELAY: relay, END_TO_END: end_to_end, LATENCY: latency,
}  # fmt: skip


@contextmanager
def _outbox(url: str) -> Iterator[tuple[Bus, Outbox]]:
    with scratch() as folder, Bus(folder / "data") as bus:
        outbox = Outbox(bus, url)
        outbox.create_tables()
        yield bus, outbox


def _publish(url: str, count: int, each: int, writers: int) -> float:
    with _outbox(url) as (bus, _):

        def write(connection: Any) -> None:
            for _ in range(count // each // writers):
                bus.publish_many("order", [_BODY] * each, transaction=connection)
                connection.commit()
            connection.close()

        threads = [threading.Thread(target=write, args=(psycopg.connect(url),)) for _ in range(writers)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return count / (time.perf_counter() - begin)


def _relay(url: str, count: int) -> float:
    _publish(url, count, 100, 1)
    with _outbox(url) as (bus, outbox):
        bus.broker.create_queue("all", type="pull", patterns=["#"])
        begin = time.perf_counter()
        sent = outbox.relay.pump()
        took = time.perf_counter() - begin
        assert sent == count, (sent, count)
        return count / took


def _end_to_end(url: str, count: int) -> float:
    with _outbox(url) as (bus, _):
        done = threading.Semaphore(0)
        seen = 0

        @bus.subscribe("order", queue="orders", batch=1000)
        def handle(bodies: list[bytes]) -> None:
            nonlocal seen
            seen += len(bodies)
            if seen >= count:
                done.release()

        bus.start()
        connection = psycopg.connect(url)
        begin = time.perf_counter()
        for _ in range(count // 100):
            bus.publish_many("order", [_BODY] * 100, transaction=connection)
            connection.commit()
        assert done.acquire(timeout=300)
        took = time.perf_counter() - begin
        connection.close()
        return count / took


def _waits(url: str, count: int) -> list[float]:
    with _outbox(url) as (bus, _):
        came = threading.Semaphore(0)
        at = 0.0

        @bus.subscribe("order", queue="orders")
        def handle(body: bytes) -> None:
            nonlocal at
            at = time.perf_counter()
            came.release()

        bus.start()
        time.sleep(0.5)
        waits = []
        with psycopg.connect(url) as connection:
            for _ in range(count):
                bus.publish("order", _BODY, transaction=connection)
                connection.commit()
                begin = time.perf_counter()
                assert came.acquire(timeout=60)
                waits.append(max(at - begin, 0.0) * 1000)
                time.sleep(0.03)
        return waits


def _pgqueuer(count: int, batch: int, url: str) -> float:
    return peers.pgqueuer_end_to_end(url, count, batch)


def _peers(server: Postgres, count: int, each: int, writers: int) -> dict[str, float | None]:
    return {
        "pgqueuer": _on(server, lambda url: peers.pgqueuer_publish(url, count, each, writers)),
        "procrastinate": _on(server, lambda url: peers.procrastinate_publish(url, count, each, writers)),
    }


def _on(server: Postgres, work: Callable[[str], Any]) -> Any:
    with server.database() as url:
        return work(url)


def _medians(effort: Effort, *measures: Callable[[], float]) -> list[float]:
    """Each in turn, round by round, so that a busy moment hits all alike."""
    rounds = [[measure() for measure in measures] for _ in range(effort.rounds)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def _scaled(effort: Effort, count: int) -> int:
    return count if effort.rounds > 1 else count // 4 // 800 * 800
