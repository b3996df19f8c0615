"""The targets of the figures, shown below the tables. Never a test: a machine may be busy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from benchmarks.big import BACKLOG, BATCHES, DELAYED, RESTART
from benchmarks.bus.failing import FAILING
from benchmarks.bus.rows import BUS_ROWS, LATENCY
from benchmarks.flow.rows import FLOW_ROWS
from benchmarks.grow import GROW_ROWS, LONGEST_MS, MOST
from benchmarks.http.rows import PAGES
from benchmarks.index.rows import LAG, SQLITE, WORDS
from benchmarks.lake.rows import COMMIT, ENGINES
from benchmarks.outbox import rows as outbox
from benchmarks.rabbitmq.names import CONSUME, END_TO_END, PUBLISH
from benchmarks.results import Result
from benchmarks.server.rows import SERVER_ROWS, SYNC_SHARE
from benchmarks.spark.rows import COLD, LIFECYCLE, PIPELINES, PLAINLY, PLANNING, READ, SOURCE, STREAM, is_judged
from benchmarks.ways import EXCHANGE, IDLE, PURE
from benchmarks.workflows import sleeping
from benchmarks.workflows.rows import DBOS, GATHER, ONE_STEP, STEP_LATENCY

_NOISE: Final = 1.15


class Finding(NamedTuple):
    """One demand on one row: what was found, and whether it is enough."""

    demand: str
    row: str
    found: str
    holds: bool


class Must(NamedTuple):
    demand: str
    row: str
    check: Callable[[Result], tuple[bool, str]]


def _rate(least: float) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: (result.remuda >= least, f"{result.remuda:,.0f}/s")


def _within(most: float) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: (result.remuda < most, f"{result.remuda:,.0f} ms")


def _cheap(most: float) -> Callable[[Result], tuple[bool, str]]:
    def check(result: Result) -> tuple[bool, str]:
        cost = float(str(result.settings["cpu_us_per_message"]))
        return cost < most, f"{cost:.1f} µs"

    return check


def _of_limit(least: float) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: ((result.ratio_to_limit or 0) >= least, f"{result.ratio_to_limit or 0:.2f}")


def _of_best_peer(least: float) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: ((result.ratio_to_best_peer or 0) >= least, f"{result.ratio_to_best_peer or 0:.1f} times")


def _of_huey(least: float) -> Callable[[Result], tuple[bool, str]]:
    def check(result: Result) -> tuple[bool, str]:
        ratio = result.remuda / (result.peers["huey"] or math.inf)
        return ratio >= least, f"{ratio:,.0f} times"

    return check


def _of_durable_peers(least: float) -> Callable[[Result], tuple[bool, str]]:
    def check(result: Result) -> tuple[bool, str]:
        names = result.settings["durable_peers"]
        ratio = result.remuda / max((result.peers[name] or 0 for name in names), default=math.inf)
        return ratio >= least, f"{ratio:.1f} times {', '.join(names) or 'nobody'}"

    return check


def _of_peer(peer: str, least: float) -> Callable[[Result], tuple[bool, str]]:
    def check(result: Result) -> tuple[bool, str]:
        ratio = result.remuda / (result.peers.get(peer) or math.inf)
        return ratio >= least, f"{ratio:.1f} times"

    return check


def _of_installed_peer(peer: str, least: float) -> Callable[[Result], tuple[bool, str]]:
    """Of one that is in no lock: without it there is nothing to compare with."""
    of_peer = _of_peer(peer, least)
    return lambda result: (
        of_peer(result) if result.peers.get(peer) else (False, f"not measured: {peer} is not installed")
    )


def _as_fast_as_rabbitmq(least: float, times: float) -> Callable[[Result], tuple[bool, str]]:
    """RabbitMQ itself carries no more: beside the share of that, what a faster client would be worth."""

    def check(result: Result) -> tuple[bool, str]:
        share, ahead = result.ratio_to_limit or 0, result.ratio_to_best_peer or 0
        found = f"{share:.2f} of the limit, {ahead:.1f} times best peer; bound by {result.settings['bound_by']}"
        return share >= least or ahead >= times, found

    return check


def _on_rabbitmq(least: float) -> Callable[[Result], tuple[bool, str]]:
    def check(result: Result) -> tuple[bool, str]:
        ahead = result.ratio_to_best_peer or 0
        return ahead >= least, f"{ahead:.1f} times; bound by {result.settings['bound_by']}"

    return check


def _server_cost(most: float) -> Callable[[Result], tuple[bool, str]]:
    def check(result: Result) -> tuple[bool, str]:
        cost: float = result.settings["server_us_per_message"]["remuda"]
        return cost <= most, f"{cost:.1f} µs"

    return check


def _at_least(least: float) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: (result.remuda >= least, f"{result.remuda:.2f}")


def _below(most: float) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: (result.remuda < most, f"{result.remuda:g} {result.unit}")


def _at_most(most: float) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: (result.remuda <= most, f"{result.remuda:.2f} {result.unit}")


def _steady_head(result: Result) -> tuple[bool, str]:
    """As with a hundred thousand waiting: no more than half again, which is what noise alone can do."""
    many, few = result.settings["head_ms"]["p50"], result.settings["head_ms_with_100k_waiting"]["p50"]
    return many <= 1.5 * few, f"p50 {many:.3f} ms, {few:.3f} ms with 100,000"


def _no_later(result: Result) -> tuple[bool, str]:
    return _not_after(result, result.peers)


def _sooner_than(peer: str, least: float) -> Callable[[Result], tuple[bool, str]]:
    def check(result: Result) -> tuple[bool, str]:
        ratio = (result.peers.get(peer) or 0) / result.remuda
        return ratio >= least, f"{ratio:.2f} times"

    return check


def _no_later_than_durable(result: Result) -> tuple[bool, str]:
    return _not_after(result, result.settings.get("durable_peers", ()))


def _not_after(result: Result, peers: Iterable[str]) -> tuple[bool, str]:
    best = min((time for name in peers if (time := result.peers[name]) is not None), default=math.inf)
    return result.remuda <= best, f"{result.remuda:.2f} ms, best peer {best:.2f} ms"


def _share(least: float) -> Callable[[Result], tuple[bool, str]]:
    return lambda result: ((result.ratio_to_best_peer or 0) >= least, f"{result.ratio_to_best_peer or 0:.2f}")


def _small_metadata(result: Result) -> tuple[bool, str]:
    most = max(result.settings["bytes"].values())
    return most <= 10_000, f"{most:,} bytes"


def _small_plan(result: Result) -> tuple[bool, str]:
    most: int = result.settings["driver_mb"]
    return most <= 200, f"{most} MB"


def _no_faster_than_linear(result: Result) -> tuple[bool, str]:
    """A million costs no more among ten than alone, but for noise."""
    growth = result.settings["growth"]
    return growth <= _NOISE, f"{growth:.2f} times"


def _lets_others_in(result: Result) -> tuple[bool, str]:
    longest = max(result.settings["checkpoint_holds_ms"], result.settings["longest_hold_ms"])
    return longest <= LONGEST_MS, f"{longest:.1f} ms"


_BUS_LEAST: Final = {"bus/threads/one": 6, "bus/asyncio/one": 6, "bus/processes/one": 5}
"""By how much the rows of single messages must be ahead; all others by five times."""

_SERVER_MUSTS: Final = {
    "durable": (
        ("≥ 3 times RabbitMQ's classic queues", _of_peer("classic", 3)),
        ("≤ 12 µs of the server's CPU per message", _server_cost(12)),
    ),
}
_SYNCED_LEAST: Final = {"100B": 12, "1KiB": 6}

MUSTS: Final = (
    *(
        Must(f"{row}: {demand}", row, check)
        for row in SERVER_ROWS
        for demand, check in _SERVER_MUSTS.get(row.split("/")[1], ())
    ),
    *(
        Must(f"{row}: ≥ {least} times RabbitMQ's quorum queues", row, _of_peer("quorum", least))
        for row in SERVER_ROWS
        for size, least in _SYNCED_LEAST.items()
        if row.split("/")[1] == "synced" and size in row.split("/")
    ),
    Must("messages per sync: ≥ 0.6 of the confirm window", SYNC_SHARE, _at_least(0.6)),
    Must(f"{PUBLISH}: ≥ 0.9 of what RabbitMQ carries, or ≥ 2 times best peer", PUBLISH, _as_fast_as_rabbitmq(0.9, 2)),
    *(Must(f"{row}: ≥ 2 times best peer", row, _on_rabbitmq(2)) for row in (CONSUME, END_TO_END)),
    Must("one at a time from a guest: ≥ 1 times huey", "shared/publish/one/1g", _of_peer("huey", 1)),
    Must("one at a time from 4 guests: ≥ 2.5 times huey", "shared/publish/one/4g", _of_peer("huey", 2.5)),
    Must("batches of 100 from 4 guests: ≥ 0.5 of one process alone", "shared/publish/batch100/4g", _of_limit(0.5)),
    Must("takeover after kill -9: p99 < 1 s", "shared/takeover", _within(1000)),
    Must("batches of 1000, os: ≥ 300,000 messages/s", "embedded/batch1000/1p/os/200B", _rate(300_000)),
    Must("batches of 1000, os: ≥ 0.3 of the bare loop", "embedded/batch1000/1p/os/200B", _of_limit(0.3)),
    Must("batches of 1000, always: ≥ 0.5 of the bare loop", "embedded/batch1000/1p/always/200B", _of_limit(0.5)),
    Must("batches of 1000, always: ≥ 100 times huey", "embedded/batch1000/1p/always/200B", _of_huey(100)),
    Must(
        "one at a time, 8 publishers, always: ≥ 5.5 times best peer",
        "embedded/one/8p/always/200B",
        _of_best_peer(5.5),
    ),
    Must("one at a time, 1 publisher, always: ≥ 1 times best peer", "embedded/one/1p/always/200B", _of_best_peer(1)),
    Must("one at a time, 1 publisher, os: ≥ 2 times huey", "embedded/one/1p/os/200B", _of_peer("huey", 2)),
    Must("one at a time, 8 publishers, os: ≥ 5.5 times huey", "embedded/one/8p/os/200B", _of_peer("huey", 5.5)),
    Must("one at a time, 1 publisher, always: ≥ 0.85 of the bare loop", "embedded/one/1p/always/200B", _of_limit(0.85)),
    Must("memory, one at a time: ≥ 2 times litequeue", "embedded/one/1p/memory/200B", _of_peer("litequeue", 2)),
    Must("one at a time in Python alone, os: ≥ 0.8 times huey", PURE, _of_peer("huey", 0.8)),
    Must("a publish through an exchange: ≤ 1.5 times one to a queue", EXCHANGE, _at_most(1.5)),
    Must("100 idle handlers: ≤ 0.3 % of a core", IDLE, _at_most(0.3)),
    Must("memory, batches of 1000: ≥ 1,000,000 messages/s", "embedded/batch1000/1p/memory/200B", _rate(1_000_000)),
    Must("10 M waiting: < 500 MB resident", BACKLOG, _below(500)),
    Must("10 M waiting: pulling the head takes as long as with 100,000", BACKLOG, _steady_head),
    Must("restart with 10 M settled, 10 k live: < 0.5 s", RESTART, _below(0.5)),
    Must("10 M delayed: < 1 GB resident", DELAYED, _below(1000)),
    Must("100 M waiting in batches: < 300 MB resident", BATCHES, _below(300)),
    *(
        Must(f"{row}: {demand}", row, check)
        for row in GROW_ROWS
        for demand, check in (
            (f"≤ {MOST:g} times the cost at the smallest size", _at_most(MOST)),
            (f"no hold of the lock above {LONGEST_MS:g} ms", _lets_others_in),
        )
    ),
    *(
        Must(f"{row}, durable: ≥ {least} times {whom}", row, check(least))
        for row in BUS_ROWS
        if row not in (LATENCY, FAILING)
        for whom, check, least in (
            ("best durable peer", _of_durable_peers, _BUS_LEAST.get(row, 5)),
            ("best peer, in-memory ones included", _of_best_peer, 5),
        )
    ),
    Must("bus/latency, durable: p50 no worse than best durable peer's", LATENCY, _no_later_than_durable),
    Must("bus/latency, durable: p50 no worse than best peer's, in-memory ones included", LATENCY, _no_later),
    Must("bus/latency, durable: 1.1 times faster than dramatiq in memory", LATENCY, _sooner_than("dramatiq", 1.1)),
    Must("bus/failing, with logging: ≤ 80 µs of CPU from fetch to retry", FAILING, _at_most(80)),
    Must("index/sqlite: ≥ 25,000 messages and events/s on one core", SQLITE, _rate(25_000)),
    Must("index/lag: < 2 s behind at 10,000 messages/s", LAG, _below(2)),
    Must("search/words, 10 M bodies: p50 ≤ 50 ms", WORDS, _at_most(50)),
    Must("HTTP, one by one: ≥ 0.5 of an endpoint that only stores", "http/publish/one", _of_best_peer(0.5)),
    Must("HTTP batches: ≥ 100,000 messages/s", "http/publish/batch", _rate(100_000)),
    Must("HTTP batches: < 8 µs of the server's CPU per message", "http/publish/batch", _cheap(8)),
    *(Must(f"dashboard/{name}, 10 M messages: p95 ≤ 150 ms", f"dashboard/{name}", _at_most(150)) for name in PAGES),
    *(Must(f"{row}: ≥ 0.95 of Spark's own Parquet scan, with planning", row, _share(0.95)) for row in READ),
    Must(f"{PLANNING}: 10,000 sealed files within 3 s", PLANNING, _at_most(3)),
    Must(f"{PLANNING}: ≤ 200 MB more on the driver", PLANNING, _small_plan),
    Must(f"{SOURCE[0]}: ≥ 0.4 of Spark's own Parquet scan", SOURCE[0], _share(0.4)),
    Must(f"{SOURCE[1]}: ≥ 0.6 of Spark's own Parquet scan", SOURCE[1], _share(0.6)),
    Must(f"{STREAM}: ≥ 0.85 of the batch source", STREAM, _share(0.85)),
    Must(f"{LIFECYCLE}: ≤ 2.5 CPU-seconds per million events", LIFECYCLE, _at_most(2.5)),
    *(Must(f"{row}: ≤ 7 CPU-seconds per million", row, _at_most(7)) for row in PIPELINES if row != LIFECYCLE),
    *(Must(f"{row}: ≤ 1.5 times the plainest Spark job", row, _share(1 / 1.5)) for row in PLAINLY),
    Must(f"{COLD}: within 15 s", COLD, _at_most(15)),
    Must(f"{COMMIT}: ≤ 10 ms for each sealed file", COMMIT, _at_most(10)),
    Must(f"{COMMIT}: ≤ 10 KB for each sealed file", COMMIT, _small_metadata),
    *(Must(f"{row}: ≤ 1.2 times the engine's own files", row, _share(1 / 1.2)) for row in ENGINES),
    *(Must(f"{row}: no more per message with ten times as many", row, _no_faster_than_linear) for row in PIPELINES),
    Must("8 committers: ≥ 0.8 of bare inserts", outbox.PUBLISH_1, _of_limit(0.8)),
    Must("outbox, end to end: ≥ 3 times pgqueuer", outbox.END_TO_END, _of_best_peer(3)),
    Must("outbox, end to end: ≥ 0.5 of raw SQL", outbox.END_TO_END, _of_limit(0.5)),
    *(
        Must(f"{row}: ≥ 0.7 of the same queue without rules", row, _of_limit(0.7))
        for row in FLOW_ROWS
        if row.startswith("flow/ordered")
    ),
    Must("from commit to handler: p50 ≤ 25 ms", outbox.LATENCY, _at_most(25)),
    Must("workflows of one step, os: ≥ 5,000 per second of CPU", ONE_STEP["os"], _rate(5000)),
    Must("workflows of one step, always: ≥ 10 times DBOS on SQLite", ONE_STEP["always"], _of_installed_peer(DBOS, 10)),
    Must("a step adds ≤ 1 ms", STEP_LATENCY, _at_most(1)),
    Must("a gather of 10,000: ≥ 2 times Celery's chord", GATHER, _of_best_peer(2)),
    Must("100,000 sleeping workflows: ≤ 500 bytes each", sleeping.MEMORY, _at_most(500)),
    Must("restart with 100,000 sleeping workflows: ≤ 2 s", sleeping.RESTART, _at_most(2)),
)


def findings(results: Mapping[str, Result]) -> Iterator[Finding]:
    """Every demand on a row that was measured."""
    for must in MUSTS:
        result = results.get(must.row)
        if result is not None and is_judged(result):
            holds, found = must.check(result)
            yield Finding(must.demand, must.row, found, holds)
