"""A guest's queries to its host: by name, with values, and the answer is awaited."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from remuda.broker.embedded.delivering.notices import Handler, NoticeBoard
from remuda.log.repair.recovery import RecoveryReport
from remuda.model.document import Document
from remuda.model.errors import RemudaError
from remuda.model.notes import Noted
from remuda.model.operations.filters import MessageFilter, Which
from remuda.model.operations.results import Health, ParkedMessage, QueueInfo, Removed
from remuda.model.operations.worker_orders import Orders, Worker, WorkerOrder
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.queues.routing import Binding, ExchangeKind


class Queries:
    """The part of a backend that changes nothing."""

    closed: bool
    notices: NoticeBoard
    wants_notices = False
    """Whether the host sends us notices."""

    @abstractmethod
    def ask(self, query: str, *values: Any) -> Any:
        """The host's answer to a query of `frames.QUERIES`."""

    def health(self) -> Health:
        try:
            health: Health = self.ask("health")
        except RemudaError as error:
            return Health(not self.closed, False, {"host": str(error)})
        return health

    def info(self, name: str) -> QueueInfo:
        found: QueueInfo = self.ask("info", name)
        return found

    def queues(self) -> list[QueueInfo]:
        found: list[QueueInfo] = self.ask("queues")
        return found

    def parked(self, name: str, chosen: MessageFilter, limit: int) -> list[ParkedMessage]:
        found: list[ParkedMessage] = self.ask("parked", name, chosen, limit)
        return found

    def flow(self, name: str, limit: int) -> FlowInfo:
        found: FlowInfo = self.ask("flow", name, limit)
        return found

    def waiting(self, name: str, which: Which) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = self.ask("waiting", name, which)
        return found

    def notes(self, queue: str, offset: int, after: int) -> list[Noted]:
        found: list[Noted] = self.ask("notes", queue, offset, after)
        return found

    def exchanges(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        found: dict[str, tuple[ExchangeKind, tuple[Binding, ...]]] = self.ask("exchanges")
        return found

    def document(self, message: str | int) -> Document:
        found: Document = self.ask("document", message)
        return found

    def known(self, id: str) -> tuple[int, list[int]]:
        found: tuple[int, list[int]] = self.ask("known", id)
        return found

    def workers(self) -> list[Worker]:
        found: list[Worker] = self.ask("workers")
        return found

    def order_worker(self, id: str, order: WorkerOrder, who: str) -> None:
        self.ask("order_worker", id, order, who)

    def cancel_running(self, queue: str, offset: int, who: str) -> bool:
        told: bool = self.ask("cancel_running", queue, offset, who)
        return told

    def tell_worker(self, worker: Worker) -> Orders:
        orders: Orders = self.ask("tell_worker", worker)
        return orders

    def worker_left(self, id: str) -> None:
        self.ask("worker_left", id)

    def flush(self) -> None:
        self.ask("flush")

    def checkpoint(self) -> None:
        self.ask("checkpoint")

    def collect(self) -> Removed:
        removed: Removed = self.ask("collect")
        return removed

    def on_notice(self, handler: Handler) -> None:
        self.notices.add(handler)
        self.wants_notices = True
        self.ask("notices", True)

    def off_notice(self, handler: Handler) -> None:
        self.notices.remove(handler)
        if not self.notices.wanted:
            self.wants_notices = False
            self.ask("notices", False)

    @property
    def recovery(self) -> RecoveryReport:
        """A guest opens no log, so it finds nothing to recover: its host did."""
        return RecoveryReport()
