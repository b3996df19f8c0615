"""Messages that runs wait for. One that came before the wait counts as well, and each goes to one run.

All messages of a topic and key, and all runs that wait for them, are notes on one message, their mailbox. The log puts
them in order, and who gets what follows from that order alone: whoever reads it comes to the same result, however often
and after whatever crash.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.bus.handlers.context import Context
from remuda.bus.handlers.exceptions import Suspended
from remuda.bus.workflows.history import KIND, History, note_message
from remuda.bus.workflows.told import note_on
from remuda.model.errors import Duplicate, NotFound, NotHeld
from remuda.model.message import Message
from remuda.model.notes import Note, Noted
from remuda.model.operations.filters import MessageFilter
from remuda.model.values.durations import DAY, SECOND

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

QUEUE: Final = "remuda.mailboxes"
TOPIC: Final = "remuda-mailbox"
LIFE: Final = 30 * DAY
"""How long a message is kept that nobody waits for."""
RENEWED: Final = 7 * DAY
"""A run that waits for longer looks again whether its mailbox still stands."""
_PLACE: Final = "remuda-waiter"
_SINCE: Final = "remuda-since"
_SIGNAL: Final = "signal"
_WAITER: Final = "waiter"
_LEFT: Final = "left"
_GONE: Final = "gone"
_CLOSED: Final = "closed"
_REMEMBERED: Final = 256
"""Mailboxes whose state a process keeps in memory."""
_UNHEARD: Final = 1 << 60
"""More notes than there will be: a mailbox is not woken by them."""


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


class Mailbox:
    """Which waiter gets which message, by the order of the notes."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.lock = threading.Lock()
        self.read_notes = 0
        self.closed = False
        self.waiting: dict[str, int] = {}
        """Who waits, and since when."""
        self.signals: dict[int, Noted] = {}
        """By its offset, each message that nobody has got, without its body."""
        self.taken: dict[str, tuple[int, Noted]] = {}
        self.takers: dict[int, str] = {}
        self.gone: dict[str, int] = {}
        """Runs that were over when a message came for them, and how often."""

    def read(self, notes: Iterable[Noted]) -> None:
        for note in notes:
            if not self.closed:
                self._read(note)
            self.read_notes += 1

    def _read(self, note: Noted) -> None:
        kind, place = note.headers.get(KIND), note.headers.get(_PLACE, "")
        since = int(note.headers.get(_SINCE, "0"))
        match kind:
            case "signal":
                self._offer(since, msgspec.structs.replace(note, body=b"", headers={}))
            case "waiter":
                self.waiting[place] = since
                first = min((offset for offset in self.signals if offset > since), default=None)
                if first is not None:
                    self._give(place, first, self.signals.pop(first))
            case "left":
                self.waiting.pop(place, None)
            case "gone":
                self.gone[place] = self.gone.get(place, 0) + 1
                self.waiting.pop(place, None)
                had = self.taken.pop(place, None)
                if had is not None:
                    self._offer(*had)
            case "closed":
                # Only if nothing came in between.
                self.closed = since == self.read_notes

    def _offer(self, offset: int, note: Noted) -> None:
        taker = next((place for place, since in self.waiting.items() if offset > since), None)
        if taker is None:
            self.takers.pop(offset, None)
            self.signals[offset] = note
        else:
            self._give(taker, offset, note)

    def _give(self, place: str, offset: int, note: Noted) -> None:
        del self.waiting[place]
        self.taken[place] = offset, note
        self.takers[offset] = place


class Mailboxes:
    """The mailboxes of a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: dict[str, Mailbox] = {}
        self._broker: object = None

    def arrived(self, topic: str, key: str | None, offset: int, message: Message) -> None:
        """A message has come. Tells the run that gets it, if one waits already."""
        name, signal = self._name(topic, key), Signal(offset, message.body, message.mime_type)
        box = self._note(name, topic, key, _SIGNAL, "", offset, message.id, message.body, message.mime_type)
        while (taker := box.takers.get(offset)) is not None:
            place = _place(taker)
            if self._lives(place):
                self._tell(place, signal)
                return
            # It was cancelled, cleared or ended meanwhile: the next one gets it.
            box = self._note(name, topic, key, _GONE, taker, offset, str(box.gone.get(taker, 0)))

    def wait(self, topic: str, key: str | None, waiter: Waiter) -> Signal | None:
        """A run waits. Returns what it gets, if that has come already. Waiting twice changes nothing."""
        name = self._name(topic, key)
        box = self._note(name, topic, key, _WAITER, waiter.text, waiter.since)
        again = box.gone.get(waiter.text, 0)
        if again:  # it was over, and was begun again
            box = self._note(name, topic, key, _WAITER, waiter.text, waiter.since, str(again))
        return self._taken(box, waiter)

    def leave(self, topic: str, key: str | None, waiter: Waiter) -> Signal | None:
        """A run waits no longer, unless something came for it before."""
        return self._taken(self._note(self._name(topic, key), topic, key, _LEFT, waiter.text, waiter.since), waiter)

    def close(self, context: Context) -> None:
        """The time of a mailbox is up: it ends, unless somebody waits, or something came lately."""
        place, now = context.place, self._bus.now()
        box = self._filled(place.offset)
        for taker in list(box.waiting):
            if not self._lives(_place(taker)):
                self._write(box, _GONE, taker, 0, str(box.gone.get(taker, 0)))
        self._refresh(box)
        newest = max((one.created for one in box.signals.values()), default=0)
        left = LIFE if box.waiting else newest + LIFE - now
        if left <= 0 and not box.closed:
            self._write(box, _CLOSED, "", box.read_notes, str(box.read_notes))
            self._refresh(box)
            left = 0 if box.closed else SECOND
        if left > 0 and not box.closed:
            raise Suspended("kept, since somebody waits or may wait for what came", left, _UNHEARD)

    def _taken(self, box: Mailbox, waiter: Waiter) -> Signal | None:
        found = box.taken.get(waiter.text)
        if found is None:
            return None
        offset, note = found
        message = self._bus.broker.message(note.offset).message
        return Signal(offset, message.body, message.mime_type)

    def _lives(self, place: Note) -> bool:
        """Whether a run can still be told: it is in its queue, with the note of its wait, and no dead letter."""
        broker, one = self._bus.broker, MessageFilter(offsets=((place.offset, 1),))
        try:
            history = History(broker.notes(place.queue, place.offset))
            return history.hears(place.number) and not broker.parked(place.queue, one, 1)
        except NotFound:
            return False

    def _tell(self, place: Note, signal: Signal) -> None:
        """Note on a run what it gets."""
        note_on(self._bus.broker, place, _SIGNAL, "", signal.body, signal.mime_type, {_SINCE: str(signal.offset)})

    def _note(
        self,
        name: str,
        topic: str,
        key: str | None,
        kind: str,
        place: str,
        since: int,
        unique: str = "",
        body: bytes = b"",
        mime_type: str = "text/plain",
    ) -> Mailbox:
        """Note something in a mailbox, once. Returns the mailbox with that note."""
        while True:
            box = self._box(name, topic, key)
            try:
                self._write(box, kind, place, since, unique, body, mime_type)
                self._refresh(box)
            except (NotHeld, NotFound):
                self._known.pop(name, None)
                continue
            if not box.closed:
                return box
            self._known.pop(name, None)
            time.sleep(0.02)  # until its handler has ended it

    def _write(
        self,
        box: Mailbox,
        kind: str,
        place: str,
        since: int,
        unique: str,
        body: bytes = b"",
        mime_type: str = "text/plain",
    ) -> None:
        number = int.from_bytes(_hash(f"{kind}|{place}|{unique}")[:7], "big")
        note = Note(self._bus.prefix + QUEUE, box.offset, number)
        row = note_message(note, kind, "", body, mime_type, {_PLACE: place, _SINCE: str(since)})
        with contextlib.suppress(Duplicate):
            self._bus.broker.publish([row], note=note)

    def _refresh(self, box: Mailbox) -> None:
        with box.lock:
            box.read(self._bus.broker.notes(self._bus.prefix + QUEUE, box.offset, box.read_notes))

    def _filled(self, offset: int) -> Mailbox:
        box = Mailbox(offset)
        self._refresh(box)
        return box

    def _box(self, name: str, topic: str, key: str | None) -> Mailbox:
        broker, now = self._bus.broker, self._bus.now()
        if self._broker is not broker:
            self._known, self._broker = {}, broker
        found = self._known.get(name)
        if found is not None:
            return found
        message = Message(TOPIC, b"", id=name, object=topic, key=key, due=now + LIFE, mime_type="text/plain")
        broker.create_queue(self._bus.prefix + QUEUE, {"type": "round-robin"})
        try:
            offset = broker.publish(message, queue=self._bus.prefix + QUEUE, once="waiting").first
        except Duplicate:
            offset = broker.message(name).offset
        while len(self._known) >= _REMEMBERED:
            self._known.pop(next(iter(self._known)), None)
        found = self._known[name] = self._filled(offset)
        return found

    def _name(self, topic: str, key: str | None) -> str:
        text = f"{self._bus.prefix}{QUEUE}|{topic}|{key is None}|{key or ''}"
        return f"mailbox-{_hash(text).hex()[:40]}"


def _place(text: str) -> Note:
    offset, number, queue = text.split(" ", 2)
    return Note(queue, int(offset), int(number))


def _hash(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
