"""What was measured, as it is kept in `results/latest.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

LATEST: Final = Path(__file__).parent / "results" / "latest.json"
RATE: Final = "messages/s"
LATENCY: Final = "ms"
BUSY: Final = 0.7
"""The load average of a machine, before the run, from which on its figures say little."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Ratios are of rates, so more is better; they are missing where a row has no peer or no limit."""

    name: str
    unit: str
    remuda: float
    peers: dict[str, float | None] = {}
    """None for one that could not be measured; the settings say why."""
    ratio_to_best_peer: float | None = None
    limit: float | None = None
    ratio_to_limit: float | None = None
    settings: dict[str, Any] = {}


def rate_result(
    name: str, remuda: float, peers: Mapping[str, float | None], limit: float | None, settings: dict[str, Any]
) -> Result:
    """A row of rates, with its ratios."""
    best = max((rate for rate in peers.values() if rate is not None), default=None)
    return Result(
        name=name,
        unit=RATE,
        remuda=round(remuda, 1),
        peers={peer: None if rate is None else round(rate, 1) for peer, rate in peers.items()},
        ratio_to_best_peer=None if best is None else round(remuda / best, 3),
        limit=None if limit is None else round(limit, 1),
        ratio_to_limit=None if limit is None else round(remuda / limit, 4),
        settings=settings,
    )


def latency_result(name: str, remuda: float, peers: Mapping[str, float | None], settings: dict[str, Any]) -> Result:
    """A row of times, with the ratio of the best peer's time to Remuda's."""
    best = min((time for time in peers.values() if time is not None), default=None)
    ratio = None if best is None else round(best / remuda, 3)
    return Result(
        name=name, unit=LATENCY, remuda=remuda, peers=dict(peers), ratio_to_best_peer=ratio, settings=settings
    )


def with_settings(result: Result, **more: Any) -> Result:
    return msgspec.structs.replace(result, settings=result.settings | more)


def load(path: Path = LATEST) -> list[Result]:
    return msgspec.json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []


def save(results: list[Result], path: Path = LATEST) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def merged(old: list[Result], new: list[Result], order: list[str]) -> list[Result]:
    """The newest result of every row that still exists, in the order of the table."""
    newest = {result.name: result for result in [*old, *new]}
    return [newest[name] for name in order if name in newest]
