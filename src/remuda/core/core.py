"""All queues of one broker. Every verb takes `now`; what comes of it is drained as effects."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from remuda.core import admission, delivery, operators, settling
from remuda.core.compacter import Compacter
from remuda.core.distributor import Distributor
from remuda.core.effects import Answer, Effects, NoticeKind
from remuda.core.extensions import Consumer, HandlerFor, StrategyFor, no_handler
from remuda.core.info import QueueInfo, describe
from remuda.core.lane import NEVER
from remuda.core.ledger import Ledger
from remuda.core.pieces import Piece
from remuda.core.queue import Queue, Waiter
from remuda.core.receipts import Declared, Differences, Receipt
from remuda.core.routers import Router, copies_of
from remuda.core.settling import Verdict
from remuda.core.spool import Spool
from remuda.core.strategies import by_type
from remuda.model.durations import DAY
from remuda.model.errors import Conflict, ConsumersFull, InvalidMessage, InvalidOption, NotFound
from remuda.model.ids import Snowflakes, time_of
from remuda.model.messages import Column, Messages, cell
from remuda.model.options import AutoDestroy, CommitWhen, QueueOptions, QueueType, Status
from remuda.model.records import (
    CONFIGURED,
    CREATED,
    FORGOTTEN,
    REMOVED,
    STATUS,
    Appended,
    Binding,
    Event,
    Events,
    QueueChange,
    Record,
    RouterChange,
    RouterKind,
    SpoolTaken,
)
from remuda.model.state import State
from remuda.model.topics import check_topic

_ID_HORIZON: Final = 366 * DAY


class Core:
    """Decides. Owns no file, no thread and no clock."""

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
        self.routers: dict[str, Router] = {}
        self.spool = Spool()
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
        return Declared(False, _differences(asked, queue.options))

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
            raise NotFound(f"there is no queue {name!r}; create it, or open the broker with auto_queue_creation") from None

    def info(self, name: str) -> QueueInfo:
        return describe(self.queue(name))

    # Routers

    def set_router(self, name: str, kind: RouterKind, bindings: Iterable[Binding], now: int) -> None:
        self.ledger.at(now)
        targets = tuple(bindings)
        for binding in targets:
            if (binding.queue is None) == (binding.topic is None):
                raise InvalidOption(f"a binding of router {name!r} must name either a queue or a topic, not {binding!r}")
        change = RouterChange(name, self.ledger.now, kind, targets)
        self.ledger.change(change)
        self.routers[name] = Router(kind, targets)

    def remove_router(self, name: str, now: int) -> None:
        self.ledger.at(now)
        if name not in self.routers:
            raise NotFound(f"there is no router {name!r}")
        self.ledger.change(RouterChange(name, self.ledger.now))
        del self.routers[name]

    # Publishing

    def publish(
        self,
        messages: Messages,
        now: int,
        *,
        queue: str | None = None,
        unbound: str | None = None,
        options: QueueOptions | Mapping[str, Any] | None = None,
        spooled: SpoolTaken | None = None,
    ) -> Receipt:
        """Take in a batch that has passed its `check`: to the queues of its topics, or to `queue` alone.

        With `unbound`, only to the channels of its topics; what no channel wants goes to the queue of that name.
        Those that come from the spool are noted as taken in together with it.
        """
        self.ledger.at(now)
        count = len(messages.bodies)
        if not count:
            return Receipt(self.ledger.next_offset, [], {}, ())
        messages = self._identified(messages)
        routes: list[tuple[str, ...]] = [(queue,)] if queue is not None else self._routes(messages, unbound)
        differs = self._ready(routes, options)
        refusals = admission.screen(messages, routes, self.queues)
        kept = messages
        if refusals:
            rows = [row for row in range(count) if row not in refusals]
            kept = messages.take(rows)
            routes = routes if len(routes) == 1 else [routes[row] for row in rows]
        # A message that is put into one queue by name is no news of its object: it is neither compared nor remembered.
        digest = self.compacter.digests(kept) if queue is None else None
        unchanged = self.compacter.unchanged(kept, digest)
        first, watch = self.ledger.next_offset, None
        if spooled is not None:
            self._take_from_spool(spooled, first if kept.bodies else None, count, refusals)
        if kept.bodies:
            record = self.ledger.append(kept, _column(routes, unchanged, len(kept)), digest)
            self.compacter.remember(kept, digest)
            watch = self._enter(record)
        assert messages.ids is not None
        repeats = tuple(row for row, same in enumerate(unchanged or ()) if same)
        return Receipt(first, messages.ids, refusals, repeats, watch, differs)

    def skip_spooled(self, spooled: SpoolTaken, now: int) -> None:
        """Rows of the spool that can be no messages are done with, too."""
        self.ledger.at(now)
        self.ledger.change(spooled)
        self.spool.note(spooled)

    def route(self, router: str, messages: Messages, now: int) -> list[Receipt]:
        """Publish through a router (Q18): copies go to its bindings, with the original's id as correlation."""
        self.ledger.at(now)
        if router not in self.routers:
            raise NotFound(f"there is no router {router!r}; nothing was stored")
        originals = self._identified(messages)
        receipts: list[Receipt] = []
        for choices, batch in self.routers[router].choose(originals):
            for binding in choices:
                receipt = self._publish_copy(binding, batch, now)
                receipts.append(receipt)
                if self.routers[router].kind is RouterKind.FIRST and not receipt.refusals:
                    break
        if not receipts:
            raise Conflict(f"router {router!r} has no binding; nothing was stored")
        return receipts

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
        return {} if options is None else _differences(self._options(options), queue.options)

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
                raise InvalidOption(f"only a message given up can go to another queue, not one answered {verdict.answer}")
            self._ready([(to,)], None)
        settled = settling.settle(self.ledger, queue, lease, verdict, runs)
        if to is not None:
            dead = [piece for run in settled for piece in queue.parked.find(run.first, run.count)]
            for piece in dead:
                self.ledger.forward(to, piece.first, piece.count, piece.high, f"{verdict.reason or 'given up'} in {name}")
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
        """Send parked messages back to the queue as new. Gives how many."""
        self.ledger.at(now)
        queue = self.queue(name)
        count = operators.reprocess(self.ledger, queue, selection, who)
        self._after(queue)
        return count

    def clear(self, name: str, now: int, *, lanes: str = "all", who: str | None = None) -> int:
        """End the messages that wait, of high priority ("priority"), the others ("regular") or all with delayed ones."""
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

    # Recovery

    def replay(self, record: Record) -> None:
        """Play one record of the log."""
        match record:
            case Appended():
                admission.enter(record, self.queues)
                self.compacter.remember(record.messages, record.digest)
                self._resume_ids(record)
                self.ledger.next_offset = max(self.ledger.next_offset, record.first + len(record))
                self.ledger.note_block(record.first, len(record), record.created)
                self.spool.replay_messages(record)
            case Events():
                for position, event in enumerate(record.rows, record.first):
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

    def resume(self, now: int) -> None:
        """After the last record: nobody holds a delivery any more, and memory queues have lost their messages."""
        self.ledger.at(now)
        recanted = self.spool.recant(self.ledger.now)
        if recanted is not None:
            self.ledger.change(recanted)
        for queue in list(self.queues.values()):
            operators.resume(self.ledger, queue)
            self._after(queue)

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
        if options.is_channel:
            self.distributor.open_channel(name, options.topics, options.patterns)
        return queue

    def _configure(self, queue: Queue, options: QueueOptions) -> None:
        queue.counts_confirmations |= options.confirmations != 1
        queue.options = options
        queue.strategy = self._strategy_for(queue.name, options)
        queue.handler = self._handler_for(queue.name, options)
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
        self.distributor.close_channel(name)

    def _replay_change(self, change: QueueChange) -> None:
        queue = self.queues.get(change.queue)
        if change.action == CREATED and change.options is not None:
            self.open(change.queue, change.options, change.status or Status.RUNNING)
        elif queue is None:
            return
        elif change.action == CONFIGURED and change.options is not None:
            self._configure(queue, change.options)
        elif change.action == STATUS and change.status is not None:
            queue.status = change.status
        elif change.action == FORGOTTEN:
            queue.forget(change.first, change.count)
        elif change.action == REMOVED:
            self._drop(change.queue)

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

    def _identified(self, messages: Messages) -> Messages:
        if messages.ids is None:
            ids: range | list[str] = self.snowflakes.take(len(messages), self.ledger.now)
        elif isinstance(messages.ids, list) and not all(messages.ids):
            fresh = iter(self.snowflakes.take(messages.ids.count(""), self.ledger.now))
            ids = [own or str(next(fresh)) for own in messages.ids]
        else:
            ids = messages.ids
        return msgspec.structs.replace(messages, ids=ids, created=self.ledger.now)

    def _routes(self, messages: Messages, unbound: str | None) -> list[tuple[str, ...]]:
        """The queues of each row, or of all rows when they share their topics."""
        if not isinstance(messages.topics, list) and not isinstance(messages.name, list):
            return [self._route(messages.topics_of(0), unbound)]
        routes: dict[tuple[str, ...], tuple[str, ...]] = {}
        found = []
        for row in range(len(messages)):
            topics = messages.topics_of(row)
            if topics not in routes:
                routes[topics] = self._route(topics, unbound)
            found.append(routes[topics])
        return found

    def _route(self, topics: tuple[str, ...], unbound: str | None) -> tuple[str, ...]:
        names: list[str] = []
        default = self.distributor.default_queue
        for topic in topics:
            if default is None or topic:
                check_topic(topic)
        if unbound is not None:
            return self.distributor.channels(topics) or (unbound,)
        for name in self.distributor.roots(topics):
            if name not in self.queues and default is not None:
                name = default
            if name not in names:
                names.append(name)
        return (*names, *(name for name in self.distributor.channels(topics) if name not in names))

    def _ready(
        self, routes: Sequence[tuple[str, ...]], options: QueueOptions | Mapping[str, Any] | None
    ) -> dict[str, Differences]:
        """Make sure that every queue on these routes exists and is initialized; all are checked before any is made.

        Gives the queues that stand with other options than those asked for.
        """
        if len(routes) == 1 and options is None and self._all_ready(routes[0]):
            return {}
        names = {name for route in routes for name in route}
        missing = [name for name in names if name not in self.queues]
        if missing:
            self._check_creation(missing[0])
        asked = self._options(options)
        for name in sorted(missing):
            self._create(name, asked, Status.RUNNING)
        for name in sorted(names):
            if self.queues[name].status is Status.NOT_INITIALIZED:
                self._initialize(self.queues[name], asked if options is not None else self.queues[name].options)
        if options is None:
            return {}
        differing = {name: _differences(asked, self.queues[name].options) for name in sorted(names)}
        return {name: differences for name, differences in differing.items() if differences}

    def _all_ready(self, names: tuple[str, ...]) -> bool:
        for name in names:
            queue = self.queues.get(name)
            if queue is None or queue.status is Status.NOT_INITIALIZED:
                return False
        return True

    def _enter(self, record: Appended) -> int | None:
        admission.enter(record, self.queues)
        watch: int | None = None
        touched: dict[str, None] = {}
        for start, stop, names in admission.stretches(record):
            for name in names:
                queue = self.queues[name]
                touched[name] = None
                admission.announce(self.ledger, queue, record.first + start, stop - start)
                if queue.options.commit_when in (CommitWhen.SENT, CommitWhen.ACKNOWLEDGED):
                    watch = watch or self.ledger.watch()
                    self.ledger.watch_messages(watch, queue, record.first + start, stop - start)
        for name in touched:
            if name in self.queues:
                admission.evict(self.ledger, self.queues[name], record.first)
                self._after(self.queues[name])
        return watch

    def _take_from_spool(
        self, spooled: SpoolTaken, first: int | None, count: int, refusals: admission.Refusals
    ) -> None:
        before = spooled.rows - count
        refused = {before + row: str(error) for row, error in refusals.items()}
        record = msgspec.structs.replace(spooled, time=self.ledger.now, first=first, refused=refused)
        self.ledger.change(record)
        self.spool.note(record)

    def _publish_copy(self, binding: Binding, batch: Messages, now: int) -> Receipt:
        copies = copies_of(batch, binding)
        try:
            return self.publish(copies, now, queue=binding.queue)
        except NotFound as error:
            return Receipt(self.ledger.next_offset, [], {row: operators.refusal(error) for row in range(len(batch))}, ())

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
            again = Event(
                queue.name, State.QUEUED, piece.first, piece.count, attempt=piece.attempt, ahead=piece.ahead
            )
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


def _differences(asked: QueueOptions, standing: QueueOptions) -> Differences:
    if asked == standing:
        return {}
    return {
        field: (getattr(asked, field), getattr(standing, field))
        for field in QueueOptions.__struct_fields__
        if getattr(asked, field) != getattr(standing, field)
    }


def _names_type(options: QueueOptions | Mapping[str, Any] | None) -> bool:
    """Whether a subscriber decides what kind of queue it is (Q13)."""
    return isinstance(options, QueueOptions) or (options is not None and "type" in options)


def _column(routes: list[tuple[str, ...]], unchanged: list[bool] | None, count: int) -> Column[tuple[str, ...]]:
    column: Column[tuple[str, ...]] = routes[0] if len(routes) == 1 else routes
    if unchanged is None or not any(unchanged):
        return column
    return [() if unchanged[row] else cell(column, row) for row in range(count)]
