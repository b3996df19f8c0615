"""Messages that runs wait for. One that came before the wait counts as well, and each goes to one run.

All messages of a topic and key, and all runs that wait for them, are notes on one message, their mailbox. The log puts
them in order, and who gets what follows from that order alone: whoever reads it comes to the same result, however often
and after whatever crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.bus.workflows.history import KIND, note_message
from remuda.model.errors import Duplicate, NotFound, NotHeld
from remuda.model.message import Message
from remuda.model.notes import Note, Noted
from remuda.model.values.durations import DAY

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

QUEUE: Final = "remuda.mailboxes"
LIFE: Final = 30 * DAY
"""How long a mailbox is kept. A run that waits for longer comes to the next one, `RENEWED` before."""
RENEWED: Final = 7 * DAY
_FAR: Final = 3650 * DAY
_PLACE: Final = "remuda-waiter"
_SINCE: Final = "remuda-since"
_SIGNAL: Final = "signal"
_WAITER: Final = "waiter"
_LEFT: Final = "left"


class Waiter(msgspec.Struct, frozen=True):
    """A run that waits: where it is told, and which messages are new to it."""

    queue: str
    offset: int
    number: int
    since: int

    @property
    def text(self) -> str:
        return f"{self.offset} {self.number} {self.queue}"


class Signal(msgspec.Struct, frozen=True):
    """What came."""

    offset: int
    body: bytes
    mime_type: str


def match(notes: Iterable[Noted]) -> dict[str, Signal]:
    """Which waiter gets which message, by the order in which they came."""
    waiting: dict[str, int] = {}
    signals: list[Signal] = []
    matched: dict[str, Signal] = {}
    for note in notes:
        kind, place = note.headers.get(KIND), note.headers.get(_PLACE, "")
        since = note.headers.get(_SINCE, "0")
        if kind == _SIGNAL:
            found = Signal(int(since), note.body, note.mime_type)
            taker = next((one for one, after in waiting.items() if found.offset > after), None)
            if taker is None:
                signals.append(found)
            else:
                del waiting[taker]
                matched[taker] = found
        elif kind == _WAITER:
            first = next((one for one in signals if one.offset > int(since)), None)
            if first is None:
                waiting[place] = int(since)
            else:
                signals.remove(first)
                matched[place] = first
        elif kind == _LEFT:
            waiting.pop(place, None)
    return matched


def arrived(bus: Bus, topic: str, key: str | None, offset: int, message: Message) -> tuple[str, Signal] | None:
    """A message has come. Returns the waiter that gets it, if one waits already."""
    notes = _noted(bus, topic, key, _SIGNAL, "", offset, message.body, message.mime_type, message.id)
    for place, signal in match(notes).items():
        if signal.offset == offset:
            return place, signal
    return None


def wait(bus: Bus, topic: str, key: str | None, waiter: Waiter) -> Signal | None:
    """A run waits. Returns what it gets, if that has come already. Waiting twice changes nothing."""
    return match(_noted(bus, topic, key, _WAITER, waiter.text, waiter.since)).get(waiter.text)


def leave(bus: Bus, topic: str, key: str | None, waiter: Waiter) -> Signal | None:
    """A run waits no longer, unless something came for it before."""
    return match(_noted(bus, topic, key, _LEFT, waiter.text, waiter.since)).get(waiter.text)


def tell(bus: Bus, place: str, signal: Signal) -> None:
    """Note on a run what it gets."""
    offset, number, queue = place.split(" ", 2)
    note = Note(queue, int(offset), int(number))
    row = note_message(note, _SIGNAL, "", signal.body, signal.mime_type, {_SINCE: str(signal.offset)})
    with contextlib.suppress(Duplicate, NotHeld, NotFound):  # it knows already, or is over
        bus.broker.publish([row], note=note)


def _noted(
    bus: Bus,
    topic: str,
    key: str | None,
    kind: str,
    place: str,
    since: int,
    body: bytes = b"",
    mime_type: str = "text/plain",
    unique: str = "",
) -> list[Noted]:
    """Note something in a mailbox, once. Returns all of its notes in their order."""
    broker, queue = bus.broker, bus.prefix + QUEUE
    name = f"mailbox-{_hash(f'{queue}|{topic}|{key is None}|{key or str()}').hex()[:40]}"
    number = int.from_bytes(_hash(f"{kind}|{place}|{unique}")[:7], "big")
    more = {_PLACE: place, _SINCE: str(since)}
    while True:
        try:
            offset = broker.message(name).offset
        except NotFound:
            _create(bus, queue, name, topic, key)
            continue
        note = Note(queue, offset, number)
        try:
            with contextlib.suppress(Duplicate):
                broker.publish([note_message(note, kind, topic, body, mime_type, more)], note=note)
        except (NotHeld, NotFound):
            _create(bus, queue, name, topic, key)
            continue
        return broker.notes(queue, offset)


def _create(bus: Bus, queue: str, name: str, topic: str, key: str | None) -> None:
    broker, now = bus.broker, bus.now()
    broker.create_queue(queue, {"type": "round-robin"})
    box = Message(topic, b"", id=name, key=key, due=now + _FAR, expires=now + LIFE, mime_type="text/plain")
    with contextlib.suppress(Duplicate):
        broker.publish(box, queue=queue, once="waiting")


def _hash(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
