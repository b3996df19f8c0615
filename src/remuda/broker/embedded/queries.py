"""A broker's queries, and the handlers of its notices."""

from __future__ import annotations

from remuda.broker.embedded.durability import Durability
from remuda.broker.embedded.notices import Handler
from remuda.broker.embedded.upkeep import Upkeep
from remuda.log.eventlog import EventLog
from remuda.log.recovery import RecoveryReport
from remuda.model.document import Document
from remuda.model.errors import NotFound
from remuda.model.filters import MessageFilter
from remuda.model.results import Health, ParkedMessage, QueueInfo, Removed
from remuda.model.routing import Binding, ExchangeKind


class Queries(Durability):
    """Answers from the queues as they are now, and from the log."""

    upkeep: Upkeep

    def health(self) -> Health:
        """Live: it works, or will by itself once the disk has room. Ready: it accepts every command."""
        problems = {f"upkeep: {duty}": reason for duty, reason in self.upkeep.troubles.copy().items()}
        if self._closed:
            problems["broker"] = self._closed_text
        elif self._group.failure is not None:
            problems["broker"] = str(self._group.stopped())
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

    def waiting(self, name: str) -> list[tuple[int, int]]:
        with self._asking() as core:
            return core.waiting(name)

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

    def reader(self) -> EventLog:
        """The log for spectators, up to now."""
        from remuda.log.reader import Reader

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
        self.upkeep.checkpoint()

    def collect(self) -> Removed:
        self.upkeep.checkpoint()
        self.upkeep.seal()
        return self.upkeep.collect()
