"""What may be done with workflows: start, ask, cancel, restart (G4)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from remuda.bus.broker_api import Broker, EmbeddedBroker
from remuda.bus.publishing import bodies
from remuda.bus.publishing.result_messages import result_id
from remuda.bus.workflows import link, numbers
from remuda.bus.workflows.history import NOTED, History, StepRecord, from_ranges, note_message, step_of
from remuda.bus.workflows.link import in_thread
from remuda.bus.workflows.mailbox import Mailboxes
from remuda.bus.workflows.registering import SIGNALS, Registering
from remuda.bus.workflows.replaying import replay
from remuda.bus.workflows.spans import Span, spans
from remuda.bus.workflows.work import Work, to_bytes
from remuda.model.document import Document, QueueView
from remuda.model.errors import Conflict, Duplicate, InvalidOption, NotFound, Unsupported
from remuda.model.life import LIVE, PARKED
from remuda.model.messages import cell
from remuda.model.notes import Note, Noted
from remuda.model.operations.filters import MessageFilter, Which
from remuda.model.queues.system_queues import CANVAS
from remuda.model.state import State
from remuda.model.values.durations import Duration
from remuda.model.values.texts import read_count, shown

if TYPE_CHECKING:
    from remuda.bus.bus import Bus
    from remuda.bus.settings.retry import RetrySpec

F = TypeVar("F", bound=Callable[..., Any])

PREFIX: Final = "workflow."
MOST: Final = 10_000
"""Of runs that failed, as many of a workflow are looked at."""
STATES: Final = ("waiting", "running", "sleeping", "done", "failed", "cancelled")
LIVE_WORDS: Final = STATES[:3]
_WHERE: Final[dict[str | None, tuple[Which, ...]]] = {
    None: (Which.WAITING, Which.HANDLED), "waiting": (Which.NEW,), "running": (Which.HANDLED,),
    "sleeping": (Which.RETURNED,),
}  # fmt: skip
"""Where to look for the live runs in a state; the others are dead letters."""


class WorkflowStatus(msgspec.Struct, frozen=True):
    """How a run stands."""

    id: str
    workflow: str
    version: int | None
    state: str
    """waiting, running, sleeping, done, failed or cancelled."""
    reason: str | None
    """What it waits for, or why it failed."""
    created: int
    ended: int | None
    queue: str
    steps: tuple[StepRecord, ...]


class Workflows:
    """The workflows of a bus. Methods ending in `_async` are for coroutines."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.mailboxes = Mailboxes(bus)
        self._registering = Registering(bus)

    def register(
        self,
        topics: tuple[str, ...],
        name: str | None,
        version: int,
        retry: RetrySpec,
        waits_for: str | tuple[str, ...],
        options: dict[str, Any],
    ) -> Callable[[F], F]:
        waits = (waits_for,) if isinstance(waits_for, str) else tuple(waits_for)
        return self._registering.workflow(topics, name, version, retry, waits, options)

    def enable(self) -> None:
        """Let this bus carry on chains and groups, also if it has no workflow of its own."""
        self._registering.enable()

    def answer(self, asked: link.Asked) -> Any:
        """The answer to a workflow in a handler's process."""
        return link.answer(self._bus, asked)

    def check(self, broker: Broker) -> None:
        """Raise `Unsupported` if workflows are registered that this broker cannot keep."""
        if self._registering.enabled and not isinstance(broker, EmbeddedBroker):
            raise Unsupported(
                "RabbitMQ keeps no notes on messages that wait in its queues, so it cannot run workflows, chains and "
                "groups; run them on a directory, or on a server of Remuda (remuda://)",
                "workflows",
            )

    # Starting

    def start(
        self, workflow: str | Callable[..., Any], body: Any = None, *, id: str | None = None, **options: Any
    ) -> str:
        """Start a run, and return its id. With an `id` of your own, the run is started once, however often this is
        called."""
        name = workflow if isinstance(workflow, str) else self._name_of(workflow)
        if not isinstance(name, str) or not name:
            raise InvalidOption(f"workflow must be the name of a workflow, or its function, not {shown(workflow)}")
        if id is None:
            return self._bus.publish(PREFIX + name, body, **options)
        options["idempotency_key"] = id
        made = self._bus.publish(PREFIX + name, body, **options)
        self._check_started(made, name)
        return made

    def _check_started(self, id: str, name: str) -> None:
        """Raise `Conflict` if this id is that of something else, so that no run was started."""
        try:
            document = self._bus.broker.message(id)
        except NotFound:  # it is not in the log yet, or no longer
            return
        queue = self._bus.prefix + PREFIX + name
        if document.message.name != queue and all(view.queue != queue for view in document.queues):
            raise Conflict(
                f"the id {id!r} is that of a message under {document.message.name}, so no run of {name} was started; "
                "give it another id"
            )

    async def start_async(
        self, workflow: str | Callable[..., Any], body: Any = None, *, id: str | None = None, **options: Any
    ) -> str:
        return await in_thread(self.start, workflow, body, id=id, **options)

    def publish(self, work: Work, *, id: str | None = None, **options: Any) -> str:
        """Publish a chain or a group in one call, and return the id of the whole."""
        self._check_work(work)
        return self._bus.publish(work, id=id or "", **options)

    def message_of(self, work: Work, body: Any, topics: Sequence[str], mime_type: str | None) -> tuple[str, bytes]:
        """The topic and the body under which a chain or a group is published."""
        self._check_work(work)
        if body is not None or topics or mime_type is not None:
            raise InvalidOption(
                "a chain or a group brings its own body and topic: leave out body, topics and mime_type. Nothing was "
                "published"
            )
        return PREFIX + CANVAS, to_bytes(work)

    def _check_work(self, work: Work) -> None:
        if not isinstance(work, Work):
            raise InvalidOption(f"publish takes chain(…), group(…) or gather(…), not {shown(work)}")
        if not self._registering.enabled:
            raise InvalidOption(
                "chains and groups are carried on by buses that take part in them, and this one does not: call "
                "bus.workflows.enable() where its handlers are. Nothing was published"
            )

    def _name_of(self, function: Callable[..., Any]) -> str:
        for family in self._registering.families.values():
            if any(one.function == function for one in family.versions.values()):
                return family.name
        raise InvalidOption(f"{shown(function)} is no workflow of this bus; decorate it with @bus.workflow")

    # Asking

    def status(self, id: str) -> WorkflowStatus:
        """How a run stands, with its steps; raises `NotFound` if the id is unknown."""
        document, view = self._find(id)
        history = History(self._notes(document, view))
        return _status(document, view, history, self._bus.prefix)

    async def status_async(self, id: str) -> WorkflowStatus:
        return await in_thread(self.status, id)

    def result(self, id: str, result: Any = Any, *, timeout: Duration = 0) -> Any:
        """What the function returned; raises its error, or `ResultNotReady` if it has not ended within `timeout`."""
        return self._bus.result(
            id, result, queue=self._find(id)[1].queue.removeprefix(self._bus.prefix), timeout=timeout
        )

    async def result_async(self, id: str, result: Any = Any, *, timeout: Duration = 0) -> Any:
        queue = (await in_thread(self._find, id))[1].queue
        return await self._bus.result_async(id, result, queue=queue.removeprefix(self._bus.prefix), timeout=timeout)

    def steps(self, id: str) -> list[StepRecord]:
        """Everything that was recorded of a run, in the order in which it came."""
        document, view = self._find(id)
        return [step_of(one) for one in self._notes(document, view)]

    async def steps_async(self, id: str) -> list[StepRecord]:
        return await in_thread(self.steps, id)

    def tree(self, id: str) -> list[Span]:
        """A run's steps with when each began and ended, and how long it waited for a worker; below each step, its
        attempts, its members and its undo."""
        document, view = self._find(id)
        return spans(map(step_of, self._notes(document, view)), document.created, view.completed or view.failed)

    async def tree_async(self, id: str) -> list[Span]:
        return await in_thread(self.tree, id)

    def runs(
        self, workflow: str | None = None, *, state: str | None = None, limit: int = 100, ended: bool = False
    ) -> list[WorkflowStatus]:
        """Runs that wait, sleep, or ended without success, the newest first; in one state, if you name it. With
        `ended`, or when you ask for those that are done, all that the log still has, which is read for it from its
        beginning."""
        read_count("limit", limit, 1)
        if workflow is not None and (not isinstance(workflow, str) or not workflow):
            raise InvalidOption(f"workflow must be the name of a workflow, not {shown(workflow)}")
        if state is not None and state not in STATES:
            raise InvalidOption(f"state must be one of {', '.join(STATES)}, not {shown(state)}")
        offsets = self._all_offsets(workflow) if ended or state == "done" else self._live_offsets(workflow, state)
        found = (one for offset in offsets if (one := self._status_at(offset)) is not None)
        return list(islice((one for one in found if state in (None, one.state)), limit))

    async def runs_async(
        self, workflow: str | None = None, *, state: str | None = None, limit: int = 100, ended: bool = False
    ) -> list[WorkflowStatus]:
        return await in_thread(self.runs, workflow, state=state, limit=limit, ended=ended)

    def _live_offsets(self, workflow: str | None, state: str | None) -> list[int]:
        """Runs that wait, are under way, or failed, the newest first."""
        broker, offsets = self._bus.broker, list[int]()
        chosen = _WHERE.get(state, ())
        for queue in self._queues(workflow):
            try:
                runs = [run for which in chosen for run in broker.waiting(queue, which)]
                parked = broker.parked(queue, None, MOST) if state not in LIVE_WORDS else []
            except NotFound:
                continue
            offsets += [offset for first, count in runs for offset in range(first, first + count)]
            offsets += [one.offset for one in parked]
        return sorted(offsets, reverse=True)

    def _queues(self, workflow: str | None) -> list[str]:
        start = self._bus.prefix + PREFIX
        if workflow is not None:
            return [start + workflow]
        return [one.name for one in self._bus.broker.queues() if one.name.startswith(start) and _has_runs(one.name)]

    def _all_offsets(self, workflow: str | None) -> list[int]:
        start = self._bus.prefix + PREFIX + (workflow or "")
        offsets = []
        for record in self._bus.broker.spectate().messages():
            for row in range(len(record)):
                queues = cell(record.queues, row)
                if any(one == start or (workflow is None and one.startswith(start)) for one in queues):
                    offsets.append(record.first + row)
        return offsets[::-1]

    def _status_at(self, offset: int) -> WorkflowStatus | None:
        document = self._bus.broker.message(offset)
        view = self._view(document)
        if view is None or not _has_runs(view.queue):
            return None
        return _status(document, view, History(self._notes(document, view)), self._bus.prefix)

    def replay(self, id: str) -> list[StepRecord]:
        """Call the function of today with what was recorded of a run, doing nothing new. Returns the steps that were
        replayed; raises `Diverged` where the code goes another way. For tests of code that is about to be deployed."""
        document, view = self._find(id)
        name = view.queue.removeprefix(self._bus.prefix + PREFIX)
        family = self._registering.families.get(name)
        if family is None:
            raise NotFound(f"workflow {name} is not registered on this bus")
        return replay(family, document, view.queue, self._notes(document, view))

    # Changing

    def cancel(self, id: str, *, undo: bool = True, who: str | None = None) -> bool:
        """Cancel a run at its next step, and undo what it has done; False if it has ended, was cancelled before, or is
        being undone already."""
        document, view = self._find(id)
        if view.state not in LIVE:
            return False
        history = History(self._notes(document, view))
        if history.get(numbers.FAILED) is not None:
            return False
        told = bodies.encode({"undo": undo, "who": self._bus._operations._who(who)})
        own = history.epoch * numbers.EPOCH + numbers.CANCELLED
        return self._note(document, view, own, "cancelled", "cancelled", *told)

    async def cancel_async(self, id: str, *, undo: bool = True, who: str | None = None) -> bool:
        return await in_thread(self.cancel, id, undo=undo, who=who)

    def restart(self, id: str, *, step: str | int | None = None, who: str | None = None) -> None:
        """Let a run that failed begin again: with this step, by its name or number, or else with the one that failed,
        or the first that was undone. The steps before it keep their results."""
        document, view = self._find(id)
        history = History(self._notes(document, view))
        if view.state not in PARKED:
            word = _word(view, history)
            raise Conflict(f"run {id} is {word}; only one that failed or was cancelled can be restarted")
        number = _number_of(history, id, step)
        if number is not None:
            told = bodies.encode({"from": number})
            own = history.epoch * numbers.EPOCH + numbers.RESTARTED
            self._note(document, view, own, "restarted", str(number if step is None else step), *told)
        chosen = MessageFilter(states=PARKED, offsets=((document.offset, 1),))
        self._bus.broker.reprocess(view.queue, chosen, who=self._bus._operations._who(who))

    async def restart_async(self, id: str, *, step: str | int | None = None, who: str | None = None) -> None:
        await in_thread(self.restart, id, step=step, who=who)

    def _note(
        self, document: Document, view: QueueView, number: int, kind: str, name: str, body: bytes, mime_type: str
    ) -> bool:
        note = Note(view.queue, document.offset, number)
        try:
            self._bus.broker.publish([note_message(note, kind, name, body, mime_type, {})], note=note)
        except Duplicate:
            return False
        return True

    def _find(self, id: str) -> tuple[Document, QueueView]:
        if not isinstance(id, str) or not id:
            raise InvalidOption(f"an id must be a string, not {shown(id)}")
        document = self._bus.broker.message(id)
        view = self._view(document)
        if view is None:
            raise NotFound(f"message {id} is not a run of a workflow")
        return document, view

    def _view(self, document: Document) -> QueueView | None:
        start = self._bus.prefix + PREFIX
        return next((one for one in reversed(document.queues) if one.queue.startswith(start)), None)

    def _notes(self, document: Document, view: QueueView) -> list[Noted]:
        broker = self._bus.broker
        if view.state in LIVE or view.state in PARKED:
            return broker.notes(view.queue, document.offset)
        try:
            kept = broker.message(result_id(view.queue, document.message.id)).message
        except NotFound:
            return []
        found = []
        for number in from_ranges(kept.headers.get(NOTED, "")):
            with contextlib.suppress(NotFound):  # collected meanwhile
                note = broker.message(f"{document.offset}/{number}")
                one = note.message
                found.append(Noted(number, note.offset, note.created, dict(one.headers), one.body, one.mime_type))
        return sorted(found, key=lambda one: one.offset)


def _has_runs(queue: str) -> bool:
    return not queue.endswith(SIGNALS)


def _number_of(history: History, id: str, step: str | int | None) -> int | None:
    """The step from which nothing counts any more; None if the run finds that out itself, by replaying its failure."""
    steps = history.steps()
    undone, told = history.undone(), history.get(numbers.FAILED)
    if step is None:
        if told is None and history.get(numbers.CANCELLED) is None:
            return None
        first = history.last + 1 if undone is None else undone
        failed = None if told is None else told.value().get("step")
        return first if failed is None else min(first, failed)
    for one in steps:
        if step in (one.number, one.name):
            if undone is not None and one.number > undone:
                raise Conflict(
                    f"run {id} cannot begin again with step {one.number}: step {undone} before it was undone; nothing "
                    f"was changed. Restart it from step {undone}, or from an earlier one"
                )
            return one.number
    raise NotFound(f"run {id} has no step {shown(step)}; it has {', '.join(one.name for one in steps) or 'none'}")


def _word(view: QueueView, history: History) -> str:
    if view.state in LIVE:
        return "running" if view.state is State.FETCHED else "sleeping" if view.reason else "waiting"
    if view.state in PARKED:
        told = history.get(numbers.CANCELLED) is not None or view.reason == "cancelled"
        return "cancelled" if told else "failed"
    return "done"


def _status(document: Document, view: QueueView, history: History, prefix: str) -> WorkflowStatus:
    return WorkflowStatus(
        document.message.id,
        view.queue.removeprefix(prefix + PREFIX),
        history.version,
        _word(view, history),
        view.reason,
        document.created,
        view.completed or view.failed,
        view.queue,
        tuple(history.steps()),
    )
