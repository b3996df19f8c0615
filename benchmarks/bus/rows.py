"""The bus rows: all sides take turns, and the median of each one's rounds counts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, Final

import msgspec

from benchmarks.bus.failing import FAILING, failing
from benchmarks.bus.player import Player, Refused
from benchmarks.bus.side import Executor, Sync
from benchmarks.bus.stage import Request
from benchmarks.effort import Effort
from benchmarks.results import Result, latency_result, rate_result
from benchmarks.scratch import scratch

LATENCY: Final = "bus/latency"
EXECUTORS: Final[tuple[Executor, ...]] = ("asyncio", "threads", "processes")
SIZES: Final = ("one", "batch")
_FIRST: Final = 100
_GUESS: Final = 300
_MOST: Final = 40_000
_PINGS_PER_SECOND: Final = 600
_MILLISECONDS: Final = 1000


class Entry(msgspec.Struct, frozen=True):
    """A side as it takes part in a row."""

    name: str
    side: str
    sync: Sync
    executor: Executor


class Turns(msgspec.Struct):
    """One side in one row: its process, and what came of its rounds; or why nothing did."""

    entry: Entry
    player: Player
    description: str = ""
    refusal: str | None = None
    count: int = 0
    rounds: list[list[float]] = msgspec.field(default_factory=list)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """A turn. A side that refuses has no more of them."""
        try:
            with self.player.turn():
                yield
        except Refused as error:
            self.refusal = str(error)
            self.player.end()

    def median(self, figure: Callable[[list[float]], float]) -> float | None:
        return statistics.median(map(figure, self.rounds)) if self.refusal is None else None

    @property
    def rates(self) -> list[float]:
        return [round(self.count / took[0], 1) for took in self.rounds]

    @property
    def rate(self) -> float | None:
        return statistics.median(self.rates) if self.refusal is None else None

    @property
    def told(self) -> str:
        return self.description if self.refusal is None else f"not measured: {self.refusal}"


def entries(executor: Executor) -> list[Entry]:
    """Remuda and huey with and without syncs; everyone else as they are."""
    return [
        Entry("remuda", "remuda", "os", executor),
        Entry("remuda, always", "remuda", "always", executor),
        Entry("huey", "huey", "os", executor),
        Entry("huey, always", "huey", "always", executor),
        Entry("huey-memory", "huey", "memory", executor),
        Entry("dramatiq", "dramatiq", "memory", executor),
        Entry("celery", "celery", "memory", executor),
    ]


def throughput(executor: Executor, size: str, effort: Effort) -> Result:
    batch = size == "batch"
    with _playing(entries(executor)) as sides:
        for turns in _willing(sides):
            with turns.trying():
                turns.player.ask(Request(_FIRST, batch))
                (seconds,) = turns.player.ask(Request(_GUESS, batch))
                turns.count = max(_GUESS, min(int(effort.seconds * _GUESS / seconds), _MOST))
        for _ in range(effort.rounds):
            for turns in _willing(sides):
                with turns.trying():
                    turns.rounds.append(turns.player.ask(Request(turns.count, batch)))
        rates = {turns.entry.name: turns.rate for turns in sides}
        settings = _settings(sides, rates) | {
            "bound_by": "the way to another process" if executor == "processes" else "Python's work per message",
            "messages_per_round": {turns.entry.name: turns.count for turns in sides},
            "rounds": {turns.entry.name: turns.rates for turns in sides},
        }
    return rate_result(f"bus/{executor}/{size}", _remuda(rates, settings), _peers(rates), None, settings)


def latency(effort: Effort) -> Result:
    others = [Entry(f"remuda, {kind}", "remuda", "os", kind) for kind in EXECUTORS if kind != "threads"]
    count = max(int(_PINGS_PER_SECOND * effort.seconds), 50)
    with _playing([*entries("threads"), *others]) as sides:
        for turns in _willing(sides):
            with turns.trying():
                turns.player.ask(Request(_FIRST))
        for _ in range(effort.rounds):
            for turns in _willing(sides):
                with turns.trying():
                    turns.rounds.append(turns.player.ask(Request(count, each=True)))
        middles = {turns.entry.name: _ms(turns.median(statistics.median)) for turns in sides}
        settings = _settings(sides, middles) | {
            "bound_by": "waking another thread",
            "p99_ms": {turns.entry.name: _ms(turns.median(_p99)) for turns in sides},
            "p50_ms_of_other_executors": {entry.executor: middles[entry.name] for entry in others},
            "messages_per_round": count,
        }
    for entry in others:
        del middles[entry.name]
    return latency_result(LATENCY, _remuda(middles, settings), _peers(middles), settings)


BUS_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    **{f"bus/{executor}/{size}": partial(throughput, executor, size) for executor, size in product(EXECUTORS, SIZES)},
    LATENCY: latency,
    FAILING: failing,
}


@contextmanager
def _playing(wanted: Sequence[Entry]) -> Iterator[list[Turns]]:
    """All sides with their workers running, and standing still; gone afterwards."""
    with scratch() as directory:
        sides: list[Turns] = []
        try:
            for number, entry in enumerate(wanted):
                player = Player(entry.side, entry.executor, entry.sync, directory / str(number))
                sides.append(Turns(entry, player))
            for turns in sides:
                with turns.trying():
                    turns.description = turns.player.ready()
            yield sides
        finally:
            for turns in sides:
                turns.player.end()


def _willing(sides: Sequence[Turns]) -> Iterator[Turns]:
    return (turns for turns in sides if turns.refusal is None)


def _settings(sides: Sequence[Turns], figures: Mapping[str, float | None]) -> dict[str, Any]:
    durable = [turns.entry.name for turns in sides if turns.entry.side != "remuda" and turns.entry.sync == "os"]
    return {turns.entry.name: turns.told for turns in sides} | {
        "durable_peers": [name for name in durable if figures[name] is not None],
        "always": {side: figures[f"{side}, always"] for side in ("remuda", "huey")},
    }


def _remuda(figures: Mapping[str, float | None], settings: Mapping[str, Any]) -> float:
    found = figures["remuda"]
    if found is None:
        raise RuntimeError(f"Remuda itself was {settings['remuda']}")
    return found


def _peers(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: found for name, found in figures.items() if name != "remuda" and not name.endswith(", always")}


def _p99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(_MILLISECONDS * seconds, 3)
