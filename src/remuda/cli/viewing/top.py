"""`remuda top`: a live view of a directory's queues."""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.model.operations.results import QueueInfo

_BARS: Final = " ▁▂▃▄▅▆▇█"
_TREND: Final = 12
_SHARE: Final = 5
"""Reading the directory takes at most one in this many parts of the time."""
_LONGEST_PAUSE: Final = 86_400.0
_PRINTED: Final = 200
"""The most queues to print without a terminal."""
_SORTS: Final = ("busy", "waiting", "dead", "name")
_KEYS: Final = {"b": "busy", "w": "waiting", "d": "dead", "n": "name"}


class Line(NamedTuple):
    """The numbers of one queue in one sample."""

    queue: str
    waiting: int
    running: int
    delayed: int
    dead: int
    published: float | None
    done: float | None
    failed: float | None
    trend: str
    status: str


def top(
    directory: Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")],
    every: Annotated[str, typer.Option(help="Refresh interval.")] = "1s",
    sort: Annotated[str, typer.Option(help="Sort by busy, waiting, dead or name.")] = "busy",
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=0, help="Exit after this many samples; 0 never exits.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per sample.")] = False,
) -> None:
    """Watch the queues live. Shows waiting, running and dead messages, and rates. Works beside a running process and
    changes nothing. Keys: q quits; b, w, d, n sort by busy, waiting, dead, name."""
    from remuda.cli.target import directory_of
    from remuda.model.errors import InvalidOption
    from remuda.model.values.durations import SECOND
    from remuda.model.values.option_reading import read_duration

    if sort not in _SORTS:
        raise InvalidOption(f"--sort must be one of {', '.join(_SORTS)}; not {sort!r}")
    length = read_duration("--every", every)
    if not length:
        raise InvalidOption(f"--every must be longer than zero, not {every!r}")
    pause = min(max(length / SECOND, 0.1), _LONGEST_PAUSE)
    watch = Watch(directory_of(directory))
    try:
        if as_json:
            _print_json(watch, sort, pause, samples)
        elif sys.stdout.isatty():
            _show(watch, sort, pause, samples)
        else:
            _print_once(watch, sort, pause, samples or 2)
    except KeyboardInterrupt:
        return


class Watch:
    """Reads a directory repeatedly, and computes rates between samples."""

    def __init__(self, path: Path) -> None:
        from remuda.server.http.rates import Rates

        self.path = path
        self.cost = 0.0
        self._rates = Rates()
        self._samples = 0
        self._trends: dict[str, deque[float]] = {}

    def sample(self) -> list[Line]:
        from remuda.cli.viewing.directory_view import DirectoryView

        began = time.monotonic()
        infos = DirectoryView(self.path).queues()
        self.cost = time.monotonic() - began
        self._rates.sample(infos)
        self._samples += 1
        return [self._line(info) for info in infos]

    def _line(self, info: QueueInfo) -> Line:
        rates: tuple[float | None, float | None, float | None] = (None, None, None)
        if self._samples > 1:
            rates = self._rates.per_second(info.name)
        trend = self._trends.setdefault(info.name, deque(maxlen=_TREND))
        trend.append(rates[1] or 0.0)
        dead = info.dead + info.invalid + info.not_interested
        return Line(info.name, info.waiting, info.in_flight, info.delayed, dead, *rates, bars(trend), info.status.value)


def bars(values: deque[float]) -> str:
    """The values as a one-line bar chart."""
    most = max(values, default=0.0)
    if most <= 0:
        return ""
    steps = len(_BARS) - 1
    return "".join(_BARS[max(1, round(value / most * steps)) if value else 0] for value in values)


def in_order(lines: list[Line], sort: str) -> list[Line]:
    from remuda.model.queues.system_queues import is_own

    keys = {
        "busy": lambda line: (
            -((line.published or 0) + (line.done or 0)),
            is_own(line.queue),
            -(line.waiting + line.running),
            line.queue,
        ),
        "waiting": lambda line: (-(line.waiting + line.delayed), line.queue),
        "dead": lambda line: (-line.dead, line.queue),
        "name": lambda line: line.queue,
    }
    return sorted(lines, key=keys[sort])


def _print_json(watch: Watch, sort: str, pause: float, samples: int) -> None:
    from remuda.cli import output

    for number, lines in enumerate(_samples(watch, pause, samples)):
        queues = [_plain(line) for line in in_order(lines, sort)]
        output.json({"sample": number, "time": output.iso(time.time_ns() // 1000), "queues": queues})
        sys.stdout.flush()


def _plain(line: Line) -> dict[str, Any]:
    return {name: value for name, value in line._asdict().items() if name != "trend"}


def _print_once(watch: Watch, sort: str, pause: float, samples: int) -> None:
    """Without a terminal: print the last sample."""
    from rich.console import Console

    lines: list[Line] = []
    for lines in _samples(watch, pause, samples):  # noqa: B007
        pass
    console = Console(width=120)
    console.print(_table(in_order(lines, sort)[:_PRINTED], None))
    if len(lines) > _PRINTED:
        console.print(f"{len(lines) - _PRINTED:,} more queues; --json shows all", highlight=False)


def _samples(watch: Watch, pause: float, samples: int) -> Iterator[list[Line]]:
    number = 0
    while True:
        yield watch.sample()
        number += 1
        if number == samples:
            return
        time.sleep(max(pause, _SHARE * watch.cost))


def _show(watch: Watch, sort: str, pause: float, samples: int) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    number = 0
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lines = watch.sample()
            number += 1
            deadline = time.monotonic() + max(pause, _SHARE * watch.cost)
            while True:
                live.update(_screen(watch, in_order(lines, sort), sort, console.height), refresh=True)
                if number == samples:
                    return
                key = pressed(deadline - time.monotonic())
                if key in ("q", "\x1b", "\x04"):
                    return
                if key is None:
                    break
                sort = _KEYS.get(key, sort)


def _screen(watch: Watch, lines: list[Line], sort: str, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from remuda.cli.output import safe

    def total(name: str) -> float:
        return sum(getattr(line, name) or 0 for line in lines)

    head = Text()
    head.append(safe(str(watch.path)), style="bold")
    head.append(f"  {len(lines):,} queues  {time.strftime('%H:%M:%S')}", style="dim")
    figures = Text(
        f"{total('waiting'):,.0f} waiting  {total('running'):,.0f} in flight  {total('delayed'):,.0f} delayed  "
    )
    figures.append(f"{total('dead'):,.0f} dead", style="red" if total("dead") else "")
    figures.append(f"   in {_rate(total('published'))}/s  done {_rate(total('done'))}/s")
    room = max(height - 7, 1)
    foot = f"sorted by {sort}; b busy, w waiting, d dead, n name, q quit"
    if len(lines) > room:
        foot = f"{len(lines) - room:,} more queues  ·  {foot}"
    return Group(head, figures, _table(lines[:room], sort), Text(foot, style="dim"))


def _table(lines: list[Line], sort: str | None) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from remuda.cli.output import safe
    from remuda.model.queues.options import status_word

    columns = {
        "waiting": "waiting",
        "in flight": "",
        "delayed": "",
        "dead": "dead",
        "in/s": "busy",
        "done/s": "",
        "fail/s": "",
    }
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, expand=False)
    drawn.add_column("queue", no_wrap=True, overflow="ellipsis", min_width=8)
    for name, order in columns.items():
        drawn.add_column(name, justify="right", no_wrap=True, header_style="reverse" if sort and order == sort else "")
    drawn.add_column("trend", no_wrap=True, overflow="crop", max_width=_TREND)
    drawn.add_column("", no_wrap=True)
    for line in lines:
        drawn.add_row(
            Text(safe(line.queue)),
            *(Text(_count(number)) for number in (line.waiting, line.running, line.delayed)),
            Text(_count(line.dead), style="red" if line.dead else ""),
            *(Text(_rate(number)) for number in (line.published, line.done)),
            Text(_rate(line.failed), style="red" if line.failed else ""),
            Text(line.trend, style="cyan"),
            Text(status_word(line.status), style="yellow"),
        )
    return drawn


def _count(number: int) -> str:
    if number < 100_000:
        return f"{number:,}" if number else "·"
    return f"{number / 1e6:.1f}M" if number >= 1_000_000 else f"{number / 1e3:.0f}k"


def _rate(number: float | None) -> str:
    if number is None:
        return ""
    if number >= 10_000:
        return f"{number / 1000:.0f}k"
    return "·" if not number else f"{number:.0f}" if number >= 10 else f"{number:.1f}"


@contextmanager
def _keys() -> Iterator[Any]:
    """Gives a function that waits for a key and returns it, or None when the time is over."""
    if not sys.stdin.isatty():

        def sleep(seconds: float) -> None:
            time.sleep(max(seconds, 0))

        yield sleep
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed(seconds: float) -> str | None:
        ready, _, _ = select.select([number], [], [], max(seconds, 0))
        if not ready:
            return None
        return os.read(number, 1).decode("latin-1") or "q"

    tty.setcbreak(number)
    try:
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
