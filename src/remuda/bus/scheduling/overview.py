"""All schedules of a broker as people see them: the next run, the last one and how it ended; and a run at once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol
from uuid import uuid4

import msgspec

from remuda.bus.broker_api import Broker, QueueInfo
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.tracking import status_of
from remuda.bus.scheduling.run_planner import run_ledger
from remuda.bus.scheduling.schedule import COPY, LAST, NAME, RULE, TOPIC, run_id, topic_of
from remuda.model.document import Document
from remuda.model.errors import NotAllowed, NotFound, StorageError, Unsupported
from remuda.model.message import Message
from remuda.model.queues.options import Status
from remuda.model.state import State
from remuda.model.values.durations import SECOND
from remuda.model.values.texts import nearest

_LATE: Final = 10 * SECOND
"""A run that is later than this has nobody to run it."""
_LOOKED_AT: Final = 100
"""How many waiting runs of a schedule are looked at; there is one, unless many were asked for by hand."""


class ScheduleState(msgspec.Struct, frozen=True, rename="camel"):
    """A schedule as it is now."""

    name: str
    queue: str
    rule: str
    status: str
    """running, or paused: its queue is."""
    next: int | None
    """When its next run is due."""
    late: bool
    """Whether that was some time ago: no worker runs it."""
    running: bool
    last: int | None
    """When its last planned run was due."""
    last_id: str | None = None
    """The message of that run."""
    outcome: str | None = None
    """What became of it, in the words of `bus.status`; None if the log no longer has it."""
    reason: str | None = None
    took: int | None = None
    missed: int = 0
    """How many of its runs were skipped, ever."""

    @property
    def word(self) -> str:
        """How it is, as people read it."""
        if self.status == "paused":
            return "paused"
        return "running now" if self.running else "late" if self.late else "on time"


class Source(Protocol):
    """Where schedules are read: a broker, or the files of a directory."""

    def queues(self) -> list[QueueInfo]: ...
    def planned(self, queue: str) -> Iterable[Message]:
        """Messages that wait in a queue, or wait for their time."""
        ...

    def document(self, id: str) -> Document: ...


def schedules(broker: Broker, now: int) -> list[ScheduleState]:
    """All schedules, by name."""
    source = _BrokerSource(broker)
    ledger = run_ledger(broker)
    if ledger is None:
        return read_schedules(source, now)
    infos = {info.name: info for info in source.queues()}
    found = []
    for name, due in ledger.planned().items():
        run: Message | None = None
        with suppress(NotFound, StorageError, Unsupported):  # there is no log, or it no longer has the message
            run = source.document(run_id(name, due)).message
        found.append(_state(source, name, infos.get(name), due, run, now))
    return found


def read_schedules(source: Source, now: int) -> list[ScheduleState]:
    """All schedules, by name, from their queues: each has its next run waiting in one."""
    found = []
    for info in source.queues():
        topics = [pattern.removesuffix(".#") for pattern in info.options.patterns if pattern.startswith(TOPIC)]
        if topics:
            planned = [run for run in source.planned(info.name) if NAME in run.headers]
            newest = max(planned, key=lambda run: run.due or 0, default=None)
            name = newest.headers[NAME] if newest is not None else topics[0].removeprefix(TOPIC)
            due = None if newest is None else newest.due
            found.append(_state(source, name, info, due, newest, now))
    return sorted(found, key=lambda one: one.name)


def run_now(broker: Broker, name: str, now: int, who: str) -> str:
    """Publish a run of a schedule that begins at once, beside its planned ones; returns its id."""
    known = {one.name: one for one in schedules(broker, now)}
    one = known.get(name)
    if one is None:
        near = ", ".join(nearest(name, list(known), 3, least=0.0)) or "none"
        raise NotFound(f"there is no schedule {name!r}; nothing was done. The nearest are: {near}")
    if not one.rule:
        raise NotAllowed(f"no run of schedule {name!r} is planned, so its rule is unknown; start its application first")
    headers = {NAME: name, RULE: one.rule, names.USER: who}
    if run_ledger(broker) is not None:
        headers[COPY] = uuid4().hex
    message = Message(topic_of(name), b"null", id=run_id(name, now), mime_type="application/json", headers=headers)
    return broker.publish(message, queue=one.queue).id


class _BrokerSource:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.queues = broker.queues

    def planned(self, queue: str) -> Iterable[Message]:
        offsets = [
            offset for first, count in self._broker.waiting(queue)[-_LOOKED_AT:]
            for offset in range(first + max(0, count - _LOOKED_AT), first + count)
        ]  # fmt: skip
        for offset in offsets[-_LOOKED_AT:]:
            with suppress(NotFound):  # it ended meanwhile, and was collected
                yield self._broker.message(offset).message

    def document(self, id: str) -> Document:
        return self._broker.message(id)


def _state(
    source: Source, name: str, info: QueueInfo | None, due: int | None, run: Message | None, now: int
) -> ScheduleState:
    headers = run.headers if run is not None else {}
    told = headers.get(LAST, "")
    last = int(told) if told.isdigit() else None
    status, running, missed = "unknown", False, 0
    if info is not None:
        paused = info.status in (Status.ONLY_PUBLISH, Status.PAUSED)
        status, running = "paused" if paused else info.status.value, info.in_flight > 0
        missed = info.counts.get(State.NOT_INTERESTED, 0)
    state = ScheduleState(
        name, name if info is None else info.name, headers.get(RULE, ""), status, due,
        due is not None and due < now - _LATE and not running and status != "paused", running, last, missed=missed,
    )  # fmt: skip
    if last is None:
        return state
    with suppress(NotFound, StorageError, Unsupported):
        document = source.document(run_id(name, last))
        view = next((view for view in document.queues if view.queue == state.queue), None)
        return msgspec.structs.replace(
            state, last_id=document.message.id, outcome=status_of(document).word,
            reason=None if view is None else view.reason, took=None if view is None else view.duration,
        )  # fmt: skip
    return state
