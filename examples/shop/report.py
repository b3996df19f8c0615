"""What happened to every message, read from the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from remuda.broker.port import Broker
from remuda.model.records import Event
from remuda.model.state import State

_STYLES = {"done": "green", "dead": "red", "invalid": "red", "unwanted": "yellow"}


class Line(NamedTuple):
    """One message in one queue."""

    order: str
    topic: str
    queue: str
    end: str
    attempts: int
    tale: str


def lines(broker: Broker) -> Iterator[Line]:
    """All messages in the order of the log, each with its life in each of its queues."""
    spectator = broker.spectate()
    events: dict[int, list[Event]] = {}
    for record in spectator.events():
        for event in record.rows:
            for offset in range(event.first, event.first + event.count):
                events.setdefault(offset, []).append(event)
    for appended in spectator.messages():
        for row in range(len(appended)):
            offset = appended.first + row
            message = appended.messages[row]
            views = broker.message(offset).queues
            for view in views:
                own = [event for event in events.get(offset, []) if event.queue == view.queue]
                moved = view.state is State.DEAD and view is not views[-1]
                end = "moved on" if moved else _end(view.state)
                yield Line(_order(message.body), message.name, view.queue, end, view.attempts, "; ".join(_tale(own)))


def table(found: list[Line]) -> Table:
    title = "What happened to every message"
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=title, title_justify="left")
    for name in ("order", "message", "queue", "end", "tries"):
        drawn.add_column(name, justify="right" if name in ("order", "tries") else "left", no_wrap=True)
    drawn.add_column("what happened on the way", overflow="fold")
    previous = None
    for line in sorted(found, key=lambda line: line.order):
        if previous not in (None, line.order):
            drawn.add_section()
        shown = "" if line.order == previous else line.order
        previous = line.order
        end = Text(line.end, style=_STYLES.get(line.end, ""))
        drawn.add_row(shown, line.topic, line.queue, end, str(line.attempts), Text(line.tale))
    return drawn


def console() -> Console:
    """As wide as the terminal; without one, wide enough for the table."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=160, highlight=False)


def _order(body: bytes) -> str:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return "-"
    if isinstance(value, dict):
        value = value.get("order", value)
        return str(value.get("number", "-"))
    return "-"


def _end(state: State) -> str:
    match state:
        case State.SUCCESS | State.COMPLETED:
            return "done"
        case State.NOT_INTERESTED:
            return "unwanted"
        case _:
            return state.name.lower()


def _tale(events: list[Event]) -> Iterator[str]:
    """The notable events, with repetitions counted."""
    for words, same in groupby(filter(None, map(_words, events))):
        times = len(list(same))
        yield words if times == 1 else f"{times} times {words}"


def _words(event: Event) -> str | None:
    match event.state:
        case State.RETRY | State.DEAD | State.INVALID:
            return event.reason
        case State.QUEUED if event.reason:
            return f"{event.reason} by {event.who}" if event.who else f"came with {event.reason}"
        case _:
            return None
