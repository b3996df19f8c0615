"""The rows of the search index by name. Sizes are told with the figures: they follow the effort."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from benchmarks.effort import Effort
from benchmarks.index.lag import PER_SECOND, behind
from benchmarks.results import LATENCY, RATE, Result
from benchmarks.scratch import scratch
from remuda.index import Query, Reached, SearchIndex, open_index
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA

SQLITE: Final = "index/sqlite"
OPENSEARCH: Final = "index/opensearch"
LAG: Final = "index/lag"
WORDS: Final = "search/words"
FULL: Final = 1_000_000
"""Messages of which rates are judged; words are judged over ten times as many."""
_BATCH: Final = 20_000
_LEAST: Final = 2_000
_STATES: Final = ("F", "S", "X")
_VOCABULARY: Final = 200_000
_LENGTH: Final = 12
_ASKED: Final = 200
_TOLD: Final = (
    "JSON of 12 words; each message is fetched, succeeds and completes, each an event of its own, 5 % in other order"
)


def is_index(result: Result) -> bool:
    return result.name in INDEX_ROWS


def sqlite(effort: Effort) -> Result:
    """Messages and events applied, per second of CPU time."""
    count = max(_LEAST, min(effort.messages // 10, FULL))
    with scratch() as folder:
        index = open_index(folder / "index")
        rate, wall = _fill(index, count)
        index.close()
    settings = {"indexed": count, "events": len(_STATES) * count, "wall_per_second": round(wall), "mix": _TOLD}
    return Result(name=SQLITE, unit=RATE, remuda=round(rate, 1), settings=settings)


def opensearch(effort: Effort) -> Result:
    """The same on a server of this machine, per second of the clock."""
    from tests.servers.opensearch import NotInstalled, running

    count = max(_LEAST, min(effort.messages // 100, 100_000))
    try:
        with running() as address:
            index = open_index(f"{address}/bench-{uuid4().hex[:8]}")
            _, wall = _fill(index, count)
            index.close()
    except NotInstalled as reason:
        return Result(name=OPENSEARCH, unit=RATE, remuda=0.0, settings={"remuda": f"not measured: {reason}"})
    settings = {"indexed": count, "events": len(_STATES) * count, "mix": _TOLD}
    return Result(name=OPENSEARCH, unit=RATE, remuda=round(wall, 1), settings=settings)


def lag(effort: Effort) -> Result:
    """How old what the index has not taken in yet becomes, while 10,000 messages a second are published and handled."""
    seconds = max(effort.seconds * 30, 1.5)
    with scratch() as folder:
        measured = behind(folder / "data", seconds)
    found = sorted(measured.looks)
    settings = {
        "per_second": PER_SECOND,
        "seconds": round(seconds, 1),
        "p50_s": round(statistics.median(found), 3),
        "cpu_us_per_message": round(measured.cpu_us_per_message, 1),
        "remuda": "the 99th percentile of looks every 20 ms; publisher, consumer and follower share the machine",
    }
    return Result(name=LAG, unit="s", remuda=round(found[int(0.99 * (len(found) - 1))], 3), settings=settings)


def words(effort: Effort) -> Result:
    """Two words, one of them common, the newest 50 that hold both: the median time."""
    count = max(_LEAST, min(effort.messages, 10 * FULL))
    chance = random.Random(5)
    with scratch() as folder:
        index = open_index(folder / "index")
        _fill(index, count, events=False)
        times: dict[str, list[float]] = {"two words": [], "one rare word": [], "one common word": []}
        for _ in range(_ASKED):
            common, rare = _word(chance.randrange(50)), _word(chance.randrange(_VOCABULARY))
            for kind, text in zip(times, (f"{common} {rare}", rare, common), strict=True):
                began = time.perf_counter()
                index.search(Query(text=text))
                times[kind].append((time.perf_counter() - began) * 1e3)
        index.close()
    settings = {"messages": count} | {
        kind: {"p50": round(statistics.median(all), 2), "p95": round(sorted(all)[int(0.95 * len(all))], 2)}
        for kind, all in times.items()
    }
    return Result(name=WORDS, unit=LATENCY, remuda=round(statistics.median(times["two words"]), 3), settings=settings)


INDEX_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    SQLITE: sqlite,
    OPENSEARCH: opensearch,
    LAG: lag,
    WORDS: words,
}


def _fill(index: SearchIndex, count: int, *, events: bool = True) -> tuple[float, float]:
    """Messages and events per second, of CPU time and of the clock. Making them is not counted."""
    index.begin(Reached())
    index.finish()
    at, rows, cpu, wall = Reached(), 0, 0.0, 0.0
    chance = random.Random(1)
    for first in range(0, count, _BATCH):
        size = min(_BATCH, count - first)
        messages = _messages(first, size, chance)
        told = _events(first, size, chance) if events else messages.slice(0, 0)
        reached = Reached(first + size, at.position + (told.num_rows if events else 0), 1)
        begun = time.process_time(), time.perf_counter()
        index.apply([messages], [told] if events else [], at, reached)
        cpu, wall = cpu + time.process_time() - begun[0], wall + time.perf_counter() - begun[1]
        at, rows = reached, rows + messages.num_rows + (told.num_rows if events else 0)
    return rows / cpu, rows / wall


def _messages(first: int, count: int, chance: random.Random) -> pa.RecordBatch:
    def body(offset: int) -> bytes:
        # Half of the words are common, as they are in most texts.
        ranks = [
            int(chance.paretovariate(0.5)) if chance.random() < 0.5 else chance.randrange(_VOCABULARY)
            for _ in range(_LENGTH)
        ]
        return f'{{"id":{offset},"text":"{" ".join(_word(rank % _VOCABULARY) for rank in ranks)}"}}'.encode()

    offsets = range(first, first + count)
    columns: dict[str, list[Any]] = {
        "offset": list(offsets),
        "created": list(offsets),
        "id": [str(offset) for offset in offsets],
        "name": ["orders.placed"] * count,
        "topics": [[]] * count,
        "object": ["order"] * count,
        "key": [str(offset) for offset in offsets],
        "timestamp": [None] * count,
        "mime_type": ["application/json"] * count,
        "queues": [["orders"]] * count,
        "body": [body(offset) for offset in offsets],
    }
    return _batch(MESSAGES_SCHEMA, columns)


def _events(first: int, count: int, chance: random.Random) -> pa.RecordBatch:
    told = [(offset, state) for offset in range(first, first + count) for state in _STATES]
    for _ in range(count // 20):  # workers side by side do not end in the order in which they began
        at = chance.randrange(len(told) - 1)
        if told[at][0] != told[at + 1][0]:
            told[at], told[at + 1] = told[at + 1], told[at]
    columns: dict[str, list[Any]] = {
        "position": list(range(first * len(_STATES), first * len(_STATES) + len(told))),
        "time": [offset for offset, _ in told],
        "queue": ["orders"] * len(told),
        "state": [state for _, state in told],
        "first": [offset for offset, _ in told],
        "count": [1] * len(told),
        "consumer": ["worker"] * len(told),
        "attempt": [1] * len(told),
        "reason": [None] * len(told),
        "to": [None] * len(told),
    }
    return _batch(EVENTS_SCHEMA, columns)


def _batch(schema: pa.Schema, columns: dict[str, list[Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns, schema=pa.schema([schema.field(name) for name in columns]))


def _word(rank: int) -> str:
    return f"w{rank:x}"
