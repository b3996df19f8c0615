"""Tables for people, JSON for programs."""

from __future__ import annotations

import re
import sys
from codecs import lookup
from collections.abc import Iterable, Sequence
from datetime import datetime
from json import dumps
from typing import Any, Final, Literal

import msgspec

from remuda.model.values.durations import MILLISECOND, SECOND
from remuda.model.values.texts import UNSAFE
from remuda.model.values.texts import safe as safe

_WIDE: Final = 200
_BODY: Final = 60
_NARROWEST: Final = 14
_MANY: Final = 1000
"""Tables with more rows are printed without rich."""
_WRAPPED: Final = frozenset({"body", "note", "value", "what happened"})


_NOT_ASCII: Final = re.compile(r"[^\x20-\x7e]")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = (), empty: str | None = None
) -> None:
    """Print a table; columns named in `right` hold numbers. `empty` is printed instead of one without rows."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    numbers = set(right)
    cells = [["" if value is None else safe(str(value)) for value in row] for row in rows]
    if empty is not None and not cells:
        print(empty)
        return
    if len(cells) > _MANY:
        _long_table(columns, cells, numbers, console.width)
        return
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in numbers else "left"
        if column in _WRAPPED:
            drawn.add_column(column, justify=justify, overflow="fold", min_width=_NARROWEST)
        else:
            drawn.add_column(column, justify=justify, no_wrap=True)
    for row in cells:
        drawn.add_row(*map(Text, row))
    console.print(drawn)


def _long_table(columns: Sequence[str], rows: list[list[str]], numbers: set[str], width: int) -> None:
    """Print many rows, each on one line; rich takes a millisecond per row. Long cells are cut."""
    widest = max(width // 2, _NARROWEST)
    shown = [[clipped(text, widest) for text in row] for row in (columns, *rows)]
    widths = [max(map(cells_of, column)) for column in zip(*shown, strict=True)]
    lines = []
    for row in shown:
        parts = []
        for name, text, room in zip(columns, row, widths, strict=True):
            blank = " " * (room - cells_of(text))
            parts.append(blank + text if name in numbers else text + blank)
        lines.append(clipped(" " + "  ".join(parts), width))
    lines.insert(1, clipped(" " + "─" * (sum(widths) + 2 * len(widths) - 2), width))
    sys.stdout.write("\n".join(lines) + "\n")


def cells_of(text: str) -> int:
    """The width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def clipped(text: str, width: int) -> str:
    """A text cut to this many terminal cells."""
    if cells_of(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text[: 4 * width], width - 1) + "…"


def json(value: Any) -> None:
    """Print a value as one line of JSON."""
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:  # a path need not be text
        text = dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False, separators=(",", ":"))
    unsafe = UNSAFE if lookup(sys.stdout.encoding or "utf-8").name == "utf-8" else _NOT_ASCII
    sys.stdout.write(unsafe.sub(lambda character: dumps(character[0])[1:-1], text) + "\n")
    sys.stdout.flush()


def done(text: str, as_json: bool, **values: Any) -> None:
    """Print what was done, as text or as JSON."""
    if as_json:
        json(values)
    else:
        print(safe(text))


def confirm(question: str, yes: bool) -> None:
    """Ask before something is lost. Unless the answer is yes, exit with code 1."""
    if yes:
        return
    print(f"{safe(question)} [y/N]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if answer.strip().lower() not in ("y", "yes"):
        print("" if answer else "\n", "nothing was changed", sep="", file=sys.stderr)
        sys.exit(1)


def moment(time: int) -> str:
    """A time in microseconds as local date and time."""
    then = _local(time)
    return _beyond(time) if then is None else then.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def clock(time: int) -> str:
    """A time in microseconds, short: only the time if it is today, otherwise date and time."""
    then = _local(time)
    if then is None:
        return _beyond(time)
    return then.strftime("%H:%M:%S" if then.date() == datetime.now().date() else "%b %d %H:%M")


def iso(time: int | None) -> str | None:
    """A time in microseconds as ISO 8601, for programs."""
    if time is None:
        return None
    then = _local(time)
    return _beyond(time) if then is None else then.isoformat()


def _local(time: int) -> datetime | None:
    """None for a time that a calendar does not have, which a producer may have given nevertheless."""
    try:
        return datetime.fromtimestamp(time / 1e6).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _beyond(time: int) -> str:
    return f"{time} microseconds since 1970"


_TIMES: Final = frozenset(
    {"created", "timestamp", "modified", "consumed", "processed", "completed", "failed", "fetched", "confirmed"}
)


def with_times(row: Any) -> Any:
    """A row with its times as ISO 8601."""
    if isinstance(row, list):
        return [with_times(one) for one in row]
    if not isinstance(row, dict):
        return row
    return {name: iso(value) if name in _TIMES else with_times(value) for name, value in row.items()}


def span(duration: int) -> str:
    """A measured duration, rounded for reading."""
    if duration >= SECOND:
        return f"{duration / SECOND:.1f}s"
    return f"{duration / MILLISECOND:.1f}ms" if duration >= MILLISECOND else f"{duration}us"


def excerpt(body: bytes, limit: int = _BODY) -> str:
    """The beginning of a body on one line."""
    try:
        shown = safe(" ".join(body.decode().split()))
    except UnicodeDecodeError:
        return f"{len(body)} bytes"
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def content(body: bytes) -> Any:
    """A body for programs: its JSON value, its text, or its bytes in base64."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": msgspec.to_builtins(body)}


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
