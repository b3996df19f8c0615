"""The queues and routers of one broker: how they come, change and go, and what time does to them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from remuda.core import admission, delivery, operators, settling
from remuda.core.compacter import Compacter
from remuda.core.distributor import Distributor
from remuda.core.effects import Effects, NoticeKind
from remuda.core.extensions import HandlerFor, StrategyFor, no_handler
from remuda.core.info import QueueInfo, describe
from remuda.core.lane import NEVER
from remuda.core.ledger import Ledger
from remuda.core.pieces import Piece
from remuda.core.queue import Queue
from remuda.core.receipts import Declared, Differences
from remuda.core.routers import Router
from remuda.core.spool import Spool
from remuda.core.strategies import by_type
from remuda.model.errors import Conflict, InvalidOption, NotFound
from remuda.model.ids import Snowflakes
from remuda.model.options import AutoDestroy, QueueOptions, QueueType, Status
from remuda.model.records import (
    CONFIGURED,
    CREATED,
    REMOVED,
    STATUS,
    Binding,
    Event,
    QueueChange,
    RouterChange,
    RouterKind,
)
from remuda.model.state import State


class Registry:
    """Holds the queues, the pen that writes about them, and the next time to look at each."""

    def __init__(
        self,
        snowflakes: Snowflakes,
        *,
        auto_queue_creation: bool = True,
        default_queue: str | None = None,
        default_options: QueueOptions | None = None,
        compacter: Compacter | None = None,
        strategy_for: StrategyFor = by_type,
        handler_for: HandlerFor = no_handler,
    ) -> None:
        self.snowflakes = snowflakes
        self.auto_queue_creation = auto_queue_creation
        self.default_options = default_options or QueueOptions()
        self.compacter = compacter or Compacter()
        self.distributor = Distributor(default_queue)
        self.ledger = Ledger()
        self.queues: dict[str, Queue] = {}
        self.known_routes: dict[tuple[tuple[str, ...], str | None], tuple[str, ...]] = {}
        self.routers: dict[str, Router] = {}
        self.spool = Spool()
        self.remade: dict[str, int] = {}
        """Queues whose creation is missing from a damaged log, with how many messages were found for each."""
        self._strategy_for = strategy_for
        self._handler_for = handler_for
        self._wakes: list[tuple[int, str]] = []
        self._joined = 0

    # Queues

    def declare(self, name: str, options: QueueOptions | Mapping[str, Any] | None, now: int) -> Declared:
        """Create a queue, or say how the one that exists differs from what is asked. The creator's options stand."""
        self.ledger.at(now)
        asked = self._options(options)
        queue = self.queues.get(name)
        if queue is None:
            self._create(name, asked, Status.RUNNING)
            return Declared(True, {})
        if queue.status is Status.NOT_INITIALIZED:
            self._initialize(queue, asked)
            self._after(queue)
            return Declared(True, {})
        if options is None:
            return Declared(False, {})
        return Declared(False, differences(asked, queue.options))

    def configure(self, name: str, changes: Mapping[str, Any], now: int, who: str | None = None) -> QueueOptions:
        """Change options of a live queue; its type stays."""
        self.ledger.at(now)
        queue = self.queue(name)
        options = queue.options.changed(changes)
        if options.type is not queue.options.type and queue.status is not Status.NOT_INITIALIZED:
            raise InvalidOption(
                f"queue {name!r} is a {queue.options.type.value} queue and stays one; "
                "create another queue for another type"
            )
        self.ledger.change(QueueChange(CONFIGURED, name, self.ledger.now, options, who=who))
        self._configure(queue, options)
        admission.evict(self.ledger, queue)
        self._after(queue)
        return options

    def set_status(self, name: str, status: Status, now: int, who: str | None = None) -> None:
        self.ledger.at(now)
        queue = self.queue(name)
        if status is Status.NOT_INITIALIZED or queue.status is Status.NOT_INITIALIZED:
            raise Conflict(
                f"queue {name!r} is {queue.status.value} and cannot be set to {status.value}; "
                "the first publish, or creating it with a type, initializes a queue"
            )
        self._set_status(queue, status, who)
        self._after(queue)

    def remove(self, name: str, now: int, who: str | None = None) -> None:
        """Remove a queue; whatever it still holds ends."""
        self.ledger.at(now)
        self._remove(self.queue(name), who)

    def queue(self, name: str) -> Queue:
        try:
            return self.queues[name]
        except KeyError:
            raise NotFound(
                f"there is no queue {name!r}; create it, or open the broker with auto_queue_creation"
            ) from None

    def info(self, name: str) -> QueueInfo:
        return describe(self.queue(name))

    # Routers

    def set_router(self, name: str, kind: RouterKind, bindings: Iterable[Binding], now: int) -> None:
        self.ledger.at(now)
        targets = tuple(bindings)
        for binding in targets:
            if (binding.queue is None) == (binding.topic is None):
                raise InvalidOption(
                    f"a binding of router {name!r} must name either a queue or a topic, not {binding!r}"
                )
        change = RouterChange(name, self.ledger.now, kind, targets)
        self.ledger.change(change)
        self.routers[name] = Router(kind, targets)

    def remove_router(self, name: str, now: int) -> None:
        self.ledger.at(now)
        if name not in self.routers:
            raise NotFound(f"there is no router {name!r}")
        self.ledger.change(RouterChange(name, self.ledger.now))
        del self.routers[name]

    # Time

    def tick(self, now: int) -> None:
        """Do what has become due."""
        self.ledger.at(now)
        while self._wakes and self._wakes[0][0] <= self.ledger.now:
            at, name = heapq.heappop(self._wakes)
            queue = self.queues.get(name)
            if queue is None or queue.wake != at:
                continue
            queue.wake = NEVER
            self._attend(queue)

    def next_wake(self) -> int:
        """When `tick` will next have something to do."""
        while self._wakes and (
            self._wakes[0][1] not in self.queues or self.queues[self._wakes[0][1]].wake != self._wakes[0][0]
        ):
            heapq.heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else NEVER

    def drain(self) -> Effects:
        return self.ledger.drain()

    # Inside

    def _options(self, options: QueueOptions | Mapping[str, Any] | None) -> QueueOptions:
        if isinstance(options, QueueOptions):
            options.check()
            return options
        return self.default_options if options is None else self.default_options.changed(options)

    def _check_creation(self, name: str) -> None:
        if not self.auto_queue_creation:
            raise NotFound(
                f"there is no queue {name!r} and auto_queue_creation is off; nothing was stored or created. "
                f"Create it first: broker.create_queue({name!r})"
            )

    def _create(self, name: str, options: QueueOptions, status: Status) -> Queue:
        if not name or not name.isprintable() or len(name.encode()) > 255:
            raise InvalidOption(f"a queue's name must be 1 to 255 bytes of printable text, not {name!r}")
        self.ledger.change(QueueChange(CREATED, name, self.ledger.now, options, status))
        queue = self.open(name, options, status)
        self.ledger.notice(NoticeKind.QUEUE_CREATED, queue)
        return queue

    def open(self, name: str, options: QueueOptions, status: Status) -> Queue:
        """A queue that is already on record."""
        queue = Queue(name, options, self._strategy_for(name, options), self._handler_for(name, options), status)
        self.queues[name] = queue
        self.known_routes.clear()
        if options.is_channel:
            self.distributor.open_channel(name, options.topics, options.patterns)
        return queue

    def _configure(self, queue: Queue, options: QueueOptions) -> None:
        queue.counts_confirmations |= options.confirmations != 1
        queue.options = options
        queue.strategy = self._strategy_for(queue.name, options)
        queue.handler = self._handler_for(queue.name, options)
        self.known_routes.clear()
        self.distributor.close_channel(queue.name)
        if options.is_channel:
            self.distributor.open_channel(queue.name, options.topics, options.patterns)

    def _initialize(self, queue: Queue, options: QueueOptions) -> None:
        self.ledger.change(QueueChange(CONFIGURED, queue.name, self.ledger.now, options))
        self._configure(queue, options)
        if options.type is not QueueType.PULL:
            queue.waiters.clear()
        self._set_status(queue, Status.RUNNING, None)

    def _set_status(self, queue: Queue, status: Status, who: str | None) -> None:
        if status is queue.status:
            return
        self.ledger.change(QueueChange(STATUS, queue.name, self.ledger.now, status=status, who=who))
        queue.status = status
        self.ledger.notice(NoticeKind.STATUS_CHANGED, queue, detail=status.value)

    def _remove(self, queue: Queue, who: str | None) -> None:
        operators.end_everything(self.ledger, queue, "queue removed", who)
        self.ledger.change(QueueChange(REMOVED, queue.name, self.ledger.now, who=who))
        self._drop(queue.name)
        self.ledger.notice(NoticeKind.QUEUE_REMOVED, queue)

    def _drop(self, name: str) -> None:
        self.queues.pop(name, None)
        self.known_routes.clear()
        self.distributor.close_channel(name)

    def _attend(self, queue: Queue) -> None:
        now = self.ledger.now
        for lease in queue.overdue_leases(now):
            settling.time_out(self.ledger, queue, lease)
        for piece in queue.due_pieces(now):
            self._come_due(queue, piece)
        delivery.expire(self.ledger, queue)
        if queue.waiters:
            queue.waiters = deque(waiter for waiter in queue.waiters if waiter.until > now)
        self._after(queue)

    def _come_due(self, queue: Queue, piece: Piece) -> None:
        if piece.deadline <= self.ledger.now:
            delivery.end_expired(self.ledger, queue, piece)
        elif piece.state is State.RETRY:
            again = Event(queue.name, State.QUEUED, piece.first, piece.count, attempt=piece.attempt, ahead=piece.ahead)
            self.ledger.event(queue, State.RETRY, again)
        else:
            queue.release_due(self.ledger.now)

    def _after(self, queue: Queue) -> None:
        """What may follow any change of a queue: deliveries, its end, the next time to look."""
        delivery.dispatch(self.ledger, queue)
        if self.ledger.forwards:
            self._forward()
        if self._is_over(queue):
            self._remove(queue, None)
            return
        wake = queue.next_wake()
        if wake < queue.wake:
            queue.wake = wake
            heapq.heappush(self._wakes, (wake, queue.name))

    def _forward(self) -> None:
        forwards, self.ledger.forwards = self.ledger.forwards, []
        for target, event in forwards:
            if target not in self.queues and self.auto_queue_creation:
                self._create(target, self.default_options, Status.RUNNING)
            elif target in self.queues and self.queues[target].status is Status.NOT_INITIALIZED:
                self._initialize(self.queues[target], self.queues[target].options)
            if target in self.queues:
                operators.enter(self.ledger, self.queues[target], event)
                admission.evict(self.ledger, self.queues[target])
        for target in dict.fromkeys(target for target, _ in forwards):
            if target in self.queues:
                self._after(self.queues[target])

    def _is_over(self, queue: Queue) -> bool:
        if queue.options.auto_destroy is AutoDestroy.DISABLED or queue.name not in self.queues:
            return False
        nobody = queue.had_consumers and not queue.consumers
        nothing = queue.had_messages and not queue.size
        match queue.options.auto_destroy:
            case AutoDestroy.NO_MESSAGES:
                return nothing
            case AutoDestroy.NO_CONSUMERS:
                return nobody
            case AutoDestroy.EMPTY:
                return not queue.size and not queue.consumers and (queue.had_messages or queue.had_consumers)
            case _:
                return False


def differences(asked: QueueOptions, standing: QueueOptions) -> Differences:
    if asked == standing:
        return {}
    return {
        field: (getattr(asked, field), getattr(standing, field))
        for field in QueueOptions.__struct_fields__
        if getattr(asked, field) != getattr(standing, field)
    }
