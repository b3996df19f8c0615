"""Draws the pictures of docs/flow.md from played runs: `python -m tools.docs.flow`.

Each run is a broker with a clock that moves by hand, messages that are published at certain times, and workers that
hold each message for a while. What happens is drawn as it happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

from remuda import ManualClock, Message, open_broker
from remuda.broker.delivery import Delivery

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
START: Final = 1_800_000_000_000_000
TICK: Final = 50_000
"""Microseconds between two looks at the queue."""
COLOURS: Final = ("#0f766e", "#b45309", "#6d4bc0", "#2563a8", "#b3261e")
ROW: Final = 18
LEFT: Final = 64
WIDTH: Final = 720
SOFT: Final = "#8a9694"
"""Readable on light and on dark pages."""


class Publish(NamedTuple):
    """A message: when it is published, in seconds, and its key; perhaps with failures before it succeeds."""

    at: float
    key: str
    fails: int = 0
    queue: str = "q"


class Run(NamedTuple):
    """What is played: options of the queues, what is published, and how long a worker holds each message."""

    name: str
    options: Mapping[str, Mapping[str, Any]]
    published: Sequence[Publish]
    takes: float = 0.5
    until: float = 4.0
    paused: Sequence[tuple[float, str, str]] = ()
    """Keys that are paused: when, which, and for how long."""


class Line(NamedTuple):
    """One message: when it came, when workers held it, when it was over, and what became of it if it never ran."""

    publish: Publish
    held: list[tuple[float, float, bool]]
    fate: str


def burst(keys: str, at: float = 0.0, queue: str = "q") -> list[Publish]:
    return [Publish(at, key, 0, queue) for key in keys]


RUNS: Final = (
    Run("plain", {"q": {}}, burst("aaabbc")),
    Run("ordered", {"q": {"ordered": True}}, [Publish(0, "a", 1), *burst("aabbc")]),
    Run("concurrency", {"q": {"concurrency": 2}}, burst("aaabbc")),
    Run("concurrency-per-key", {"q": {"concurrency_per_key": 1, "key_limits": {"a": 2}}}, burst("aaaabbb")),
    Run("limits", {"q": {"limits": {"provider": 2}}, "r": {"limits": {"provider": 2}}},
        [*burst("aaaa"), *burst("bbbb", queue="r")]),
    Run("rate", {"q": {"rate": "2/s burst 2"}}, burst("aaaaaa"), takes=0.3),
    Run("rate-per-key", {"q": {"rate_per_key": "1/s"}}, [*burst("aaabbb"), *burst("c", 1.0)], takes=0.3),
    Run("pause", {"q": {"fair": True, "concurrency": 1}}, burst("aaabbb"), paused=[(0.4, "a", "1800ms")]),
    Run("fair", {"q": {"fair": True, "concurrency": 1}}, [*burst("aaaaaa"), *burst("bb", 0.6), *burst("c", 1.1)],
        takes=0.4, until=4.4),
    Run("weights", {"q": {"fair": True, "weights": {"a": 2}, "concurrency": 1}}, burst("aaaaaabbb"),
        takes=0.4, until=4.4),
    Run("debounce", {"q": {"debounce": "800ms", "max_wait": "2s"}},
        [Publish(at, "a") for at in (0.0, 0.4, 0.8)] + [Publish(at, "b") for at in (0.0, 0.6, 1.2, 1.8, 2.4)],
        takes=0.3),
    Run("throttle", {"q": {"throttle": "1500ms"}}, [Publish(at / 2, "a") for at in range(7)], takes=0.3),
    Run("singleton-skip", {"q": {"singleton": "skip"}}, [Publish(at * 0.4, "a") for at in range(6)], takes=1.0),
    Run("singleton-replace", {"q": {"singleton": "replace", "concurrency_per_key": 1}},
        [Publish(at * 0.4, "a") for at in range(6)], takes=1.0),
)  # fmt: skip


def play(run: Run) -> list[Line]:
    """What became of each message."""
    clock = ManualClock(START)
    due = sorted(run.published, key=lambda one: one.at)
    lines: dict[str, Line] = {}
    pauses = list(run.paused)
    with open_broker("memory://", clock=clock) as broker:
        for name, options in run.options.items():
            broker.create_queue(name, type="pull", acknowledge_timeout="1h", **options)
        busy: list[tuple[float, str, Delivery]] = []
        for moment in _moments(run.until):
            clock.now = START + round(moment * 1e6)
            for begun, id, delivery in [one for one in busy if moment >= one[0] + run.takes]:
                busy.remove((begun, id, delivery))
                line = lines[id]
                fails = len(line.held) < line.publish.fails
                line.held.append((begun, moment, fails))
                if fails:
                    delivery.retry(after="700ms")
                else:
                    delivery.ack()
            while due and due[0].at <= moment:
                one = due.pop(0)
                receipt = broker.publish(Message(f"{one.queue}.m", b"", key=one.key))
                fate = (receipt.by_key or {}).get(0, "")
                if fate == "replaced":
                    _replaced(lines, one.key)
                lines[receipt.ids[0]] = Line(one, [], "skipped" if fate == "skipped" else "")
            while pauses and pauses[0][0] <= moment:
                _, key, span = pauses.pop(0)
                broker.pause_key("q", key, span)
            for name in run.options:
                while (pulled := broker.pull(name)) is not None:
                    busy.append((moment, pulled.messages.id(0), pulled))
        for begun, id, _ in busy:
            lines[id].held.append((begun, run.until, False))
    return list(lines.values())


def _moments(until: float) -> Iterator[float]:
    for tick in range(round(until * 1e6) // TICK + 1):
        yield tick * TICK / 1e6


def _replaced(lines: dict[str, Line], key: str) -> None:
    for id, line in reversed(lines.items()):
        if line.publish.key == key and not line.fate and not line.held:
            lines[id] = line._replace(fate="replaced")
            return


def drawn(run: Run, lines: Sequence[Line]) -> str:
    """A row for each message: a dot where it came, a thin line while it waits, a bar while it runs."""
    height = ROW * (len(lines) + 2)
    scale = (WIDTH - LEFT - 16) / run.until
    keys = list(dict.fromkeys(line.publish.key for line in lines))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="11">',
        f"<title>{escape(_told(run))}</title>",
    ]
    for second in range(int(run.until) + 1):
        x = LEFT + second * scale
        parts.append(
            f'<line x1="{x:.1f}" y1="6" x2="{x:.1f}" y2="{height - 20}" stroke="{SOFT}" stroke-opacity="0.3"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle" fill="{SOFT}">{second} s</text>')
    for row, line in enumerate(lines):
        parts += _row(line, ROW * (row + 1), scale, run.until, COLOURS[keys.index(line.publish.key) % len(COLOURS)])
    return "\n".join([*parts, "</svg>\n"])


def _row(line: Line, y: int, scale: float, until: float, colour: str) -> Iterator[str]:
    x = LEFT + line.publish.at * scale
    name = f"{line.publish.key}{'' if line.publish.queue == 'q' else ', ' + line.publish.queue}"
    yield f'<text x="8" y="{y + 4}" fill="{colour}">key {escape(name)}</text>'
    yield f'<circle cx="{x:.1f}" cy="{y}" r="3" fill="{colour}"/>'
    if line.fate:
        yield f'<text x="{x + 8:.1f}" y="{y + 4}" fill="{SOFT}">{line.fate}</text>'
        return
    at = line.publish.at
    for begun, ended, failed in line.held:
        yield _wait(LEFT + at * scale, LEFT + begun * scale, y, colour)
        width = max((ended - begun) * scale, 2)
        fill = f'fill="{colour}"' if not failed else f'fill="none" stroke="{colour}" stroke-dasharray="3 2"'
        yield f'<rect x="{LEFT + begun * scale:.1f}" y="{y - 5}" width="{width:.1f}" height="10" rx="2" {fill}/>'
        at = ended
    if not line.held or line.held[-1][2]:
        yield _wait(LEFT + at * scale, LEFT + until * scale, y, colour)


def _wait(begin: float, end: float, y: int, colour: str) -> str:
    return f'<line x1="{begin:.1f}" y1="{y}" x2="{end:.1f}" y2="{y}" stroke="{colour}" stroke-opacity="0.6"/>'


def _told(run: Run) -> str:
    options = "; ".join(
        ", ".join(f"{name}={value!r}" for name, value in one.items()) or "no rules" for one in run.options.values()
    )
    return f"A queue with {options}"


def pictures() -> dict[str, str]:
    """All pictures by their file names."""
    return {f"flow-{run.name}.svg": drawn(run, play(run)) for run in RUNS}


def main() -> None:
    for name, text in pictures().items():
        (IMAGES / name).write_text(text)
        print(f"docs/images/{name}")


if __name__ == "__main__":
    main()
