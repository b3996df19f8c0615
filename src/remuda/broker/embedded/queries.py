"""A broker's queries, and the handlers of its notices."""

from __future__ import annotations

import contextlib

from remuda.broker.embedded.delivering.notices import Handler
from remuda.broker.embedded.restoring import BeingRestored
from remuda.broker.embedded.storing.durability import Durability
from remuda.broker.embedded.upkeep.background import Upkeep
from remuda.broker.roster import Roster
from remuda.log.eventlog import EventLog
from remuda.log.repair.recovery import RecoveryReport
from remuda.model.document import Document
from remuda.model.errors import NotFound
from remuda.model.notes import Noted, noted_in
from remuda.model.operations.commands import Clear
from remuda.model.operations.filters import MessageFilter, Which
from remuda.model.operations.results import Health, ParkedMessage, QueueInfo, Removed
from remuda.model.operations.worker_orders import Cancellation, Orders, Worker, WorkerOrder
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.state import State
from remuda.model.values.number_runs import merged


class Queries(Durability):
    """Answers from the queues as they are now, and from the log."""

    upkeep: Upkeep
    roster: Roster

    def health(self) -> Health:
        """Live: it works, or will by itself once the disk has room. Ready: it accepts every command."""
        problems = {f"upkeep: {duty}": reason for duty, reason in self.upkeep.troubles.copy().items()}
        if self._group.failure is not None or self.closed:
            problems["broker"] = str(self._ended())
        elif self.restoration.error is not None:
            problems["errors"] = "the broker is being restored after an unexpected error"
        elif (problem := self.restoration.problem) is not None:
            problems["errors"] = problem
        live = "broker" not in problems
        trouble = self.trouble
        if live and trouble is not None:
            problems["disk"] = str(trouble)
        return Health(live, live and trouble is None, problems)

    # Queues and messages

    def info(self, name: str) -> QueueInfo:
        with self._asking() as core:
            return core.info(name)

    def queues(self) -> list[QueueInfo]:
        with self._asking() as core:
            return [core.info(name) for name in core.queues]

    def parked(self, name: str, chosen: MessageFilter, limit: int) -> list[ParkedMessage]:
        with self._asking() as core:
            return core.parked(name, chosen, limit)

    def flow(self, name: str, limit: int) -> FlowInfo:
        with self._asking() as core:
            return core.flow(name, limit, self.clock())

    def waiting(self, name: str, which: Which) -> list[tuple[int, int]]:
        with self._asking() as core:
            return core.waiting(name, which)

    def notes(self, queue: str, offset: int, after: int) -> list[Noted]:
        """The notes on a message of this queue, in the order in which they came, without the first ones."""
        with self._asking() as core:
            places = core.notes(queue, offset, after)
        if not places:
            return []
        runs = merged((place, 1) for place in places)
        held = self.engine.recent(runs)
        if held is None:
            self.flush()
            fetched = self.engine.log.fetch(runs)
            held = fetched.messages
        return list(noted_in(held, places))

    def exchanges(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        with self._asking() as core:
            return {name: (one.kind, one.bindings) for name, one in core.routing.exchanges.items()}

    def document(self, message: str | int) -> Document:
        """A message with its life in each of its queues, by its id or its offset."""
        self.flush()
        offset = message if isinstance(message, int) else self.engine.log.find_id(message)
        found = None if offset is None else self.engine.document(offset)
        if found is None:
            raise NotFound(f"there is no message {message!r}; it may have been collected after its retention")
        return found

    def known(self, id: str) -> tuple[int, list[int]]:
        """The messages with this id, the newest first, and the offset up to which the log was looked through."""
        with self._asking() as core:
            upto = core.recorder.next_offset
        self.flush()
        return upto, self.engine.log.find_ids(id)

    # Workers

    def workers(self) -> list[Worker]:
        return self.roster.all()

    def order_worker(self, id: str, order: WorkerOrder, who: str) -> None:
        self.roster.order(id, order, who)

    def cancel_running(self, queue: str, offset: int, who: str) -> bool:
        view = next((one for one in self.document(offset).queues if one.queue == queue), None)
        return view is not None and self.roster.cancel(Cancellation(queue, offset, who), view.attempts)

    def tell_worker(self, worker: Worker) -> Orders:
        for wanted, attempt in self.roster.cancelling():
            self._follow_up(wanted, attempt)
        return self.roster.tell(worker)

    def _follow_up(self, wanted: Cancellation, attempt: int) -> None:
        """Forget a cancellation once its message has ended. If its worker was lost, the message ends here."""
        try:
            views = self.document(wanted.offset).queues
        except NotFound:
            views = ()
        view = next((one for one in views if one.queue == wanted.queue), None)
        if view is not None and view.state is State.FETCHED and view.attempts >= attempt:
            return
        self.roster.cancelled(wanted)
        if view is not None and view.state in (State.QUEUED, State.RETRY) and view.attempts >= attempt:
            runs = ((wanted.offset, 1),)
            self.submit(Clear(wanted.queue, offsets=runs, reason="cancelled", who=wanted.who or None))
            self.flush()

    def worker_left(self, id: str) -> None:
        self.roster.leave(id)

    def reader(self) -> EventLog:
        """The log for spectators, up to now."""
        from remuda.log.readers.reader import Reader

        self.flush()
        return Reader(self.engine.log.disk)

    def on_notice(self, handler: Handler) -> None:
        self.notices.add(handler)
        with self._asking() as core:
            core.recorder.wants_notices = True

    def off_notice(self, handler: Handler) -> None:
        self.notices.remove(handler)
        with self._asking() as core:
            core.recorder.wants_notices = self.notices.wanted

    @property
    def recovery(self) -> RecoveryReport:
        """What was cut or lost when the log was opened."""
        return self.engine.report

    def checkpoint(self) -> None:
        while True:
            with self._asking():  # not while the queues are rebuilt
                pass
            with contextlib.suppress(BeingRestored):
                return self.upkeep.checkpoint()

    def collect(self) -> Removed:
        while True:
            with contextlib.suppress(BeingRestored):
                self.checkpoint()
                self.upkeep.seal()
                return self.upkeep.collect()
