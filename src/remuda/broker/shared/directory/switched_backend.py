"""A backend that forwards to another one, which may change without its users noticing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.inbox import Inbox
    from remuda.broker.embedded.pending import Pending
    from remuda.broker.embedded.runtime import Runtime
    from remuda.broker.shared.guest.guest import Guest
    from remuda.core.effects import Dispatch
    from remuda.log.eventlog import EventLog
    from remuda.log.repair.recovery import RecoveryReport
    from remuda.model.document import Document
    from remuda.model.messages import Messages
    from remuda.model.notes import Noted
    from remuda.model.operations.commands import Pull
    from remuda.model.operations.filters import MessageFilter, Which
    from remuda.model.operations.results import Health, ParkedMessage, QueueInfo, Removed
    from remuda.model.operations.worker_orders import Orders, Worker, WorkerOrder
    from remuda.model.queues.flow_info import FlowInfo
    from remuda.model.queues.notices import Notice
    from remuda.model.queues.routing import Binding, ExchangeKind


class SwitchedBackend:
    """Forwards to the current backend. Methods that every message needs are bound to it, so that they cost no more."""

    guest: Guest | None = None

    def _use(self, backend: Runtime | Guest) -> None:
        self.remote: bool = backend.remote
        self.submit: Any = backend.submit
        self.begin: Any = backend.begin
        self.wait: Any = backend.wait
        self.new_tag: Any = backend.new_tag
        self.track: Any = backend.track
        self.clock: Any = backend.clock
        self._backend: Any = backend

    def _open_when_needed(self, opening: Callable[[], None]) -> None:
        """In a fork: `opening` is called when the backend is first used."""
        waiting = _Unopened(self, opening)
        self._backend = waiting
        self.remote = True
        for verb in ("submit", "begin", "wait", "new_tag", "track", "clock"):
            setattr(self, verb, getattr(waiting, verb))

    @property
    def recovery(self) -> RecoveryReport:
        report: RecoveryReport = self._backend.recovery
        return report

    def kept(self, ticket: int) -> Any:
        return self._backend.kept(ticket)

    def cancel_pull(self, queue: str, tag: int) -> bool:
        cancelled: bool = self._backend.cancel_pull(queue, tag)
        return cancelled

    def forget_pull(self, tag: int) -> None:
        self._backend.forget_pull(tag)

    def forget_inbox(self, tag: int) -> None:
        self._backend.forget_inbox(tag)

    def abandon_pull(self, pending: Pending, command: Pull, inbox: Inbox | None) -> None:
        backend = self._backend if pending.answer is None or self.guest is None else self.guest
        backend.abandon_pull(pending, command, inbox)

    def give_back(self, dispatch: Dispatch) -> None:
        self._backend.give_back(dispatch)

    def asks(self, dispatch: Dispatch) -> bool:
        asks: bool = self._backend.asks(dispatch)
        return asks

    def leave(self, queue: str, consumer: str) -> None:
        self._backend.leave(queue, consumer)

    def check_stalled(self) -> None:
        self._backend.check_stalled()

    def health(self) -> Health:
        health: Health = self._backend.health()
        return health

    def hand_over(self, dispatch: Dispatch, inbox: Inbox) -> Dispatch | None:
        taken: Dispatch | None = self._backend.hand_over(dispatch, inbox)
        return taken

    def held(self, dispatch: Dispatch) -> Messages | None:
        messages: Messages | None = getattr(dispatch, "messages", None) or self._backend.held(dispatch)
        return messages

    def load(self, dispatch: Dispatch) -> tuple[Dispatch, Messages]:
        loaded: tuple[Dispatch, Messages]
        brought = getattr(dispatch, "messages", None)
        loaded = (dispatch, brought) if brought is not None else self._backend.load(dispatch)
        return loaded

    def info(self, name: str) -> QueueInfo:
        info: QueueInfo = self._backend.info(name)
        return info

    def queues(self) -> list[QueueInfo]:
        found: list[QueueInfo] = self._backend.queues()
        return found

    def parked(self, name: str, chosen: MessageFilter, limit: int) -> list[ParkedMessage]:
        found: list[ParkedMessage] = self._backend.parked(name, chosen, limit)
        return found

    def flow(self, name: str, limit: int) -> FlowInfo:
        found: FlowInfo = self._backend.flow(name, limit)
        return found

    def waiting(self, name: str, which: Which) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = self._backend.waiting(name, which)
        return found

    def notes(self, queue: str, offset: int, after: int) -> list[Noted]:
        found: list[Noted] = self._backend.notes(queue, offset, after)
        return found

    def exchanges(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        found: dict[str, tuple[ExchangeKind, tuple[Binding, ...]]] = self._backend.exchanges()
        return found

    def document(self, message: str | int) -> Document:
        found: Document = self._backend.document(message)
        return found

    def known(self, id: str) -> tuple[int, list[int]]:
        found: tuple[int, list[int]] = self._backend.known(id)
        return found

    def workers(self) -> list[Worker]:
        found: list[Worker] = self._backend.workers()
        return found

    def order_worker(self, id: str, order: WorkerOrder, who: str) -> None:
        self._backend.order_worker(id, order, who)

    def cancel_running(self, queue: str, offset: int, who: str) -> bool:
        told: bool = self._backend.cancel_running(queue, offset, who)
        return told

    def tell_worker(self, worker: Worker) -> Orders:
        orders: Orders = self._backend.tell_worker(worker)
        return orders

    def worker_left(self, id: str) -> None:
        self._backend.worker_left(id)

    def reader(self) -> EventLog:
        log: EventLog = self._backend.reader()
        return log

    def flush(self) -> None:
        self._backend.flush()

    def on_notice(self, handler: Callable[[Notice], None]) -> None:
        self._backend.on_notice(handler)

    def off_notice(self, handler: Callable[[Notice], None]) -> None:
        self._backend.off_notice(handler)

    def checkpoint(self) -> None:
        self._backend.checkpoint()

    def collect(self) -> Removed:
        removed: Removed = self._backend.collect()
        return removed


class _Unopened:
    """Stands in until a fork first needs its broker."""

    def __init__(self, role: SwitchedBackend, opening: Callable[[], None]) -> None:
        self._role = role
        self._opening = opening
        self._turn = threading.Lock()

    def __getattr__(self, verb: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            with self._turn:
                if self._role._backend is self:
                    self._opening()
            return getattr(self._role._backend, verb)(*args, **options)

        return call
