"""All queues of one broker. Every verb takes `now`; what comes of it is drained as effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from remuda.core import admission, delivery, operators, settling
from remuda.core.effects import Answer, NoticeKind
from remuda.core.extensions import Consumer
from remuda.core.publishing import Publishing
from remuda.core.queue import Queue, Waiter
from remuda.core.receipts import Differences
from remuda.core.registry import differences
from remuda.core.routers import Router
from remuda.core.settling import Verdict
from remuda.model.durations import DAY
from remuda.model.errors import Conflict, ConsumersFull, InvalidOption
from remuda.model.ids import time_of
from remuda.model.options import QueueOptions, QueueType, Status
from remuda.model.records import (
    CONFIGURED,
    CREATED,
    FORGOTTEN,
    REMOVED,
    STATUS,
    Appended,
    Events,
    QueueChange,
    Record,
    RouterChange,
    SpoolTaken,
)
from remuda.model.state import State

_ID_HORIZON: Final = 366 * DAY


class Core(Publishing):
    """Decides. Owns no file, no thread and no clock."""

    # Consuming

    def subscribe(
        self,
        name: str,
        consumer: str,
        now: int,
        *,
        batch: int = 1,
        options: QueueOptions | Mapping[str, Any] | None = None,
    ) -> Differences:
        """Consumer `consumer` takes messages of the queue, up to `batch` per delivery. Gives how its options differ."""
        self.ledger.at(now)
        if not consumer or ", " in consumer:
            raise InvalidOption(f"a consumer's name must be a text without ', ', not {consumer!r}")
        if batch < 1:
            raise InvalidOption(f"batch must be at least 1, not {batch}")
        queue = self.queues.get(name)
        if queue is None:
            self._check_creation(name)
            status = Status.RUNNING if _names_type(options) else Status.NOT_INITIALIZED
            queue = self._create(name, self._options(options), status)
        elif queue.status is Status.NOT_INITIALIZED and _names_type(options):
            self._initialize(queue, self._options(options))
        if consumer in queue.consumers:
            raise Conflict(f"queue {name!r} already has a consumer named {consumer!r}")
        limit = queue.options.client_limit
        if limit and len(queue.consumers) >= limit:
            raise ConsumersFull(
                f"queue {name!r} has {len(queue.consumers)} consumers, its client_limit; "
                "close one of them or raise the limit"
            )
        self._joined += 1
        queue.consumers[consumer] = Consumer(consumer, batch, self._joined)
        queue.had_consumers = True
        self.ledger.notice(NoticeKind.CONSUMER_SUBSCRIBED, queue, consumer=consumer)
        self._after(queue)
        return {} if options is None else differences(self._options(options), queue.options)

    def unsubscribe(self, name: str, consumer: str, now: int) -> None:
        """A consumer leaves or is lost; what it had not answered goes back."""
        self.ledger.at(now)
        queue = self.queues.get(name)
        if queue is None or queue.consumers.pop(consumer, None) is None:
            return
        settling.lose(self.ledger, queue, consumer)
        self.ledger.notice(NoticeKind.CONSUMER_UNSUBSCRIBED, queue, consumer=consumer)
        self._after(queue)

    def pull(
        self,
        name: str,
        consumer: str,
        now: int,
        *,
        count: int = 1,
        newest: bool = False,
        wait: int = 0,
        clear_after: str = "none",
        request: int = 0,
    ) -> bool:
        """Ask for messages (Q16); the delivery is an effect. False if there are none and the request does not wait."""
        self.ledger.at(now)
        if count < 1:
            raise InvalidOption(f"a pull asks for at least 1 message, not {count}")
        queue = self.queues.get(name)
        if queue is None:
            self._check_creation(name)
            queue = self._create(name, self._options(None), Status.NOT_INITIALIZED)
        if queue.options.type is not QueueType.PULL and queue.status is not Status.NOT_INITIALIZED:
            raise Conflict(f"queue {name!r} is a {queue.options.type.value} queue; subscribe to it instead of pulling")
        waiter = Waiter(consumer, count, newest, self.ledger.now + wait, request, clear_after)
        served = delivery.pull(self.ledger, queue, waiter)
        if not served and wait:
            queue.waiters.append(waiter)
        self._after(queue)
        return served or bool(wait)

    def withdraw(self, name: str, request: int) -> None:
        """A pull request waits no longer."""
        queue = self.queues.get(name)
        if queue is not None:
            queue.waiters = deque(waiter for waiter in queue.waiters if waiter.request != request)

    def settle(
        self,
        name: str,
        lease: int,
        verdict: Verdict,
        now: int,
        *,
        runs: Sequence[tuple[int, int]] | None = None,
        to: str | None = None,
    ) -> int:
        """Answer for a delivery. Gives how many messages the answer settled: 0 for a late or second one."""
        self.ledger.at(now)
        queue = self.queues.get(name)
        if queue is None:
            self.ledger.late_answers += 1
            return 0
        if to is not None:
            if verdict.answer is not Answer.DEAD:
                raise InvalidOption(
                    f"only a message given up can go to another queue, not one answered {verdict.answer}"
                )
            self._ready([(to,)], None)
        settled = settling.settle(self.ledger, queue, lease, verdict, runs)
        if to is not None:
            dead = [piece for run in settled for piece in queue.parked.find(run.first, run.count)]
            for piece in dead:
                self.ledger.forward(
                    to, piece.first, piece.count, piece.high, f"{verdict.reason or 'given up'} in {name}"
                )
        self._after(queue)
        return sum(piece.count for piece in settled)

    def renew(self, name: str, lease: int, now: int) -> bool:
        """Give a delivery's holder the whole time for an answer once more; False if it holds it no longer."""
        self.ledger.at(now)
        queue = self.queues.get(name)
        held = queue.leases.get(lease) if queue is not None else None
        if queue is None or held is None:
            return False
        queue.extend(held, self.ledger.now + queue.options.acknowledge_timeout)
        return True

    # Operators

    def parked(self, name: str, selection: operators.Selection, limit: int) -> list[operators.Parked]:
        """Messages that ended without success, the newest first."""
        return operators.parked(self.queue(name), selection, limit)

    def reprocess(self, name: str, selection: operators.Selection, now: int, who: str | None = None) -> int:
        """Send parked messages back to the queue as new, as many as its limit has room for. Gives how many."""
        self.ledger.at(now)
        queue = self.queue(name)
        count = operators.reprocess(self.ledger, queue, selection, who)
        self._after(queue)
        return count

    def clear(self, name: str, now: int, *, lanes: str = "all", who: str | None = None) -> int:
        """End the messages that wait: those of high "priority", the "regular" ones, or "all", delayed ones included."""
        self.ledger.at(now)
        queue = self.queue(name)
        count = operators.clear(self.ledger, queue, lanes, who)
        self._after(queue)
        return count

    def forget(self, name: str, selection: operators.Selection, now: int, who: str | None = None) -> int:
        """Let parked messages go for good. Gives how many."""
        self.ledger.at(now)
        return operators.forget(self.ledger, self.queue(name), selection, who)

    def lost(self, name: str, runs: Iterable[tuple[int, int]], now: int) -> None:
        """Messages whose record could not be read back from the log end, and say so."""
        self.ledger.at(now)
        queue = self.queue(name)
        operators.end(self.ledger, queue, runs, "unreadable in the log")
        settling.recount(queue)
        self._after(queue)

    # Recovery

    def replay(self, record: Record) -> None:
        """Play one record of the log."""
        match record:
            case Appended():
                self._remake_queues(record)
                admission.enter(record, admission.stretches(record), self.queues)
                self.compacter.remember(record.messages, record.digest)
                self._resume_ids(record)
                self.ledger.next_offset = max(self.ledger.next_offset, record.first + len(record))
                self.ledger.note_block(record.first, len(record), record.created)
                self.spool.replay_messages(record)
            case Events():
                for position, event in enumerate(record.rows, record.first):
                    if event.state is State.QUEUED and (event.queue not in self.queues or event.queue in self.remade):
                        self._remake(event.queue, event.count)
                    queue = self.queues.get(event.queue)
                    if queue is not None:
                        queue.evolve(event, record.time, position)
                    self.ledger.note_end(event, record.time)
                self.ledger.next_position = max(self.ledger.next_position, record.first + len(record))
            case QueueChange():
                self._replay_change(record)
            case SpoolTaken():
                self.spool.replay(record)
            case RouterChange():
                if record.kind is None:
                    self.routers.pop(record.router, None)
                else:
                    self.routers[record.router] = Router(record.kind, record.bindings)

    def resume(self, now: int, begun: operators.Begun = lambda event, first, count: None) -> None:
        """After the last record: nobody holds a delivery any more, and memory queues have lost their messages."""
        self.ledger.at(now)
        recanted = self.spool.recant(self.ledger.now)
        if recanted is not None:
            self.ledger.change(recanted)
        for queue in list(self.queues.values()):
            operators.resume(self.ledger, queue, begun)
            self._after(queue)

    def _replay_change(self, change: QueueChange) -> None:
        queue = self.queues.get(change.queue)
        if change.action == CREATED and change.options is not None:
            self.open(change.queue, change.options, change.status or Status.RUNNING)
        elif change.action == CONFIGURED and change.options is not None:
            if queue is None:
                queue = self._remake(change.queue, 0)
            self._configure(queue, change.options)
            if change.queue in self.remade:
                queue.status = Status.RUNNING
        elif queue is None:
            return
        elif change.action == STATUS and change.status is not None:
            queue.status = change.status
        elif change.action == FORGOTTEN:
            queue.forget(change.first, change.count)
        elif change.action == REMOVED:
            self._drop(change.queue)

    def _remake_queues(self, record: Appended) -> None:
        """Messages are only ever stored for queues that exist: where one is not known, the log has lost its creation.
        It is made again, or its messages would be taken for settled and collected."""
        for start, stop, names in admission.stretches(record):
            for name in names:
                if name not in self.queues or name in self.remade:
                    self._remake(name, stop - start)

    def _remake(self, name: str, messages: int) -> Queue:
        self.remade[name] = self.remade.get(name, 0) + messages
        queue = self.queues.get(name)
        return queue or self.open(name, self.default_options, Status.NOT_INITIALIZED)

    def _resume_ids(self, record: Appended) -> None:
        """Ids on record are not given again, even if the clock is behind them. Those of callers that look like ours
        are passed over too, unless they lie so far ahead that they cannot be."""
        ids = record.messages.ids
        if isinstance(ids, range):
            numbers = [ids[-1]] if ids else []
        else:
            numbers = [int(own) for own in ids or () if len(own) < 20 and own.isascii() and own.isdigit()]
        given = [number for number in numbers if time_of(number) < record.created + _ID_HORIZON]
        if given:
            self.snowflakes.resume(max(given))


def _names_type(options: QueueOptions | Mapping[str, Any] | None) -> bool:
    """Whether a subscriber decides what kind of queue it is (Q13)."""
    return isinstance(options, QueueOptions) or (options is not None and "type" in options)
