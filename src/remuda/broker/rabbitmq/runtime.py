"""The broker's machinery on RabbitMQ: two connections, what is known of the queues, and what time demands.

One connection publishes, the other consumes: RabbitMQ stops reading from publishers when it is short of memory, and
acknowledgements must still reach it then.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import msgspec

from remuda.amqp.connection import Connection
from remuda.amqp.errors import AmqpError, ChannelClosed, ConnectionLost
from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.broker.embedded.notices import NoticeBoard
from remuda.broker.options import BrokerOptions
from remuda.broker.rabbitmq import definitions as defined
from remuda.broker.rabbitmq import settings
from remuda.broker.rabbitmq.consuming import Consuming
from remuda.broker.rabbitmq.definitions import Change, Definitions, QueueDefinition, change
from remuda.broker.rabbitmq.fetcher import Arrival, Fetcher
from remuda.broker.rabbitmq.numbers import Ids
from remuda.broker.rabbitmq.publishing import Publishing
from remuda.broker.rabbitmq.records import NoRecords, RecordSink
from remuda.broker.rabbitmq.sender import CLOSED, Sender
from remuda.broker.rabbitmq.settings import RabbitSettings
from remuda.broker.rabbitmq.settling import Settler
from remuda.broker.rabbitmq.support import DEAD, refuse, refuse_change
from remuda.broker.rabbitmq.topology import Topology
from remuda.log.eventlog import EventLog
from remuda.log.streams.log import StreamLog
from remuda.log.streams.numbers import STREAM
from remuda.log.streams.writer import StreamWriter
from remuda.model.commands import ConfigureQueue, DeclareQueue, NamedOptions, RemoveQueue, SetStatus
from remuda.model.document import Document, document
from remuda.model.errors import BrokerClosed, Conflict, InvalidOption, NotFound, RemudaError, Unsupported
from remuda.model.ids import WORKERS
from remuda.model.notices import Notice, NoticeKind
from remuda.model.options import AutoDestroy, QueueOptions, Status
from remuda.model.records import Event
from remuda.model.results import Declared, Differences, QueueInfo
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State

_LOG: Final = logging.getLogger("remuda.rabbitmq")
_BEAT: Final = 0.25
_FOLLOWING: Final = 5.0
_RESOURCE_LOCKED: Final = 405
_NOT_FOUND: Final = 404
_BURST: Final = 16
"""From so many on, messages are better sent than asked for one by one."""
GIVING: Final = frozenset({Status.RUNNING, Status.ONLY_CONSUME})
"""Statuses in which consumers are served."""


class Runtime:
    """Everything that both faces of the broker share."""

    def __init__(
        self, url: str, options: BrokerOptions, clock: Clock | None = None, records: RecordSink | None = None
    ) -> None:
        self.settings = RabbitSettings.read(url)
        self.options = options
        self.clock: Clock = clock or steady_clock()
        self.records: RecordSink = records or NoRecords()
        self._keeps_log = records is None and self.settings.log is not None
        self.closed = False
        self._log: StreamLog | None = None
        self.notices = NoticeBoard()
        plain = self.settings.connection
        self.publishing_connection = Connection(msgspec.structs.replace(plain, name=plain.name or "remuda publishes"))
        self.consuming_connection = Connection(
            msgspec.structs.replace(plain, name=plain.name or "remuda consumes"), on_change=self._reconnected
        )
        self.sender = Sender(self.publishing_connection)
        # A stream that is not ready after a restart does not answer: nobody else waits for it, and it is asked anew.
        self._following_connection = Connection(
            msgspec.structs.replace(plain, name=plain.name or "remuda follows", reply_timeout=_FOLLOWING)
        )
        self.definitions = Definitions(self._following_connection, self.sender, self._defined, plain.reply_timeout)
        self.topology = Topology(
            self.consuming_connection, self.definitions, self.settings.queue_type, self.clock,
            uses_existing=self.settings.uses_existing,
        )  # fmt: skip
        self.settler = Settler(self.sender, self.topology, self.ensure)
        self.ids = Ids(options.worker or 0)
        self.publishing = Publishing(
            self.sender, self.topology, self.definitions, self.ids, options, self.clock, self.records, self.notices,
            self.background,
        )  # fmt: skip
        self.consuming = Consuming(
            self.definitions, self.settler, self.clock, self.records, self.notices, self.background
        )
        self.publishing.counts = self.consuming.counts
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="remuda-rabbitmq")
        self._fetchers: dict[str, Fetcher] = {}
        self._subscribed: dict[Fetcher, tuple[str, str]] = {}
        self._guard = threading.RLock()
        self._wake = threading.Event()
        self._closing = False
        self.pulls: dict[str, int] = {}
        """Pulls that wait, by queue."""
        self._claimed_at = -1
        self._claim: Any = None
        self._upkeep = threading.Thread(target=self._run, name="remuda-rabbitmq-upkeep", daemon=True)

    def open(self) -> Runtime:
        limit = settings.OPEN
        try:
            self.consuming_connection.open(limit)
            self.publishing_connection.open(limit)
            self.sender.open()
            self.topology.open()
            self._claim_worker()
            self._following_connection.open(limit)
            self.definitions.open(self.clock())
            if self._keeps_log and self.settings.log is not None:
                writer = StreamWriter(self.settings.connection, stream=self.settings.log)
                self.records = self.publishing.records = self.consuming.records = writer
        except BaseException:
            self._let_go()
            raise
        self._upkeep.start()
        return self

    # Queues

    def definition(self, name: str) -> QueueDefinition:
        try:
            return self.definitions.queues[name]
        except KeyError:
            raise NotFound(
                f"there is no queue {name!r}; create it, or open the broker with auto_queue_creation"
            ) from None

    def declare(self, command: DeclareQueue, status: Status = Status.RUNNING) -> Declared:
        self.check_open()
        name = command.queue
        known = self.definitions.queues.get(name)
        created = False
        if known is None:
            _check_name(name)
            options = self._options(command.options)
            refuse(options)
            kept = None if status is Status.RUNNING else status
            created = self.definitions.propose(
                change(defined.CREATED, name, self.clock(), options=options, status=kept)
            )
            known = self.definition(name)
        elif known.status is Status.NOT_INITIALIZED and status is Status.RUNNING:
            options = known.options.with_values(command.options or {})
            refuse(options)
            created = self.definitions.propose(change(defined.INITIALIZED, name, self.clock(), options=options))
            known = self.definition(name)
        elif command.options is not None:
            refuse(known.options.with_values(command.options))
        if known.status is Status.NOT_INITIALIZED:
            return Declared(created, {})
        try:
            self.topology.make(name, known)
        except RemudaError:
            if created:
                self.definitions.propose(change(defined.REMOVED, name, self.clock()))
            raise
        if created:
            for target in (known.options.expired_queue, known.options.dead_letter_queue):
                if target is not None and target not in self.definitions.queues:
                    self.ensure(target)
        return Declared(created, {} if created else _differences(command.options, known.options))

    def ensure(self, name: str, named: NamedOptions = None, status: Status = Status.RUNNING) -> QueueDefinition:
        """A queue that is used: made if it may be, and there in RabbitMQ. A subscriber that names no type leaves it to
        others to initialize it."""
        self.check_open()
        known = self.definitions.queues.get(name)
        if known is None or (known.status is Status.NOT_INITIALIZED and status is Status.RUNNING):
            self._check_creation(name, known)
            self.declare(DeclareQueue(name, named), status)
            return self.definition(name)
        if known.status is not Status.NOT_INITIALIZED:
            self.topology.make(name, known)
        return known

    def _check_creation(self, name: str, known: QueueDefinition | None) -> None:
        if known is None and not self.options.auto_queue_creation:
            raise NotFound(
                f"there is no queue {name!r} and auto_queue_creation is off; nothing was stored or created. "
                f"Create it first: broker.create_queue({name!r})"
            )

    def ensure_all(self, names: Sequence[str], named: NamedOptions) -> dict[str, Differences]:
        """Queues to publish to. All may be made, or none is."""
        if not self.options.auto_queue_creation:
            for name in names:
                if name not in self.definitions.queues:
                    self.ensure(name)
        differs = {}
        for name in names:
            existed = name in self.definitions.queues
            known = self.ensure(name, named)
            if existed and (found := _differences(named, known.options)):
                differs[name] = found
        return differs

    def configure(self, command: ConfigureQueue) -> QueueOptions:
        self.check_open()
        known = self.definition(command.queue)
        options = known.options.with_values(command.options)
        if known.status is Status.NOT_INITIALIZED:
            refuse(options)
            self.definitions.propose(
                change(defined.CONFIGURED, command.queue, self.clock(), options=options, who=command.who)
            )
            return options
        if options.type is not known.options.type:
            raise InvalidOption(
                f"queue {command.queue!r} is a {known.options.type.value} queue and stays one; "
                "create another queue for another type"
            )
        refuse_change(known.options, options)
        self.topology.make(command.queue, known)
        self.topology.rebind(command.queue, known.options, options)
        self.definitions.propose(
            change(defined.CONFIGURED, command.queue, self.clock(), options=options, who=command.who)
        )
        return options

    def set_status(self, command: SetStatus) -> None:
        self.check_open()
        known = self.definition(command.queue)
        if Status.NOT_INITIALIZED in (command.status, known.status):
            raise Conflict(
                f"queue {command.queue!r} is {known.status.value} and cannot be set to {command.status.value}; "
                "the first publish, or creating it with a type, initializes a queue"
            )
        self.definitions.propose(
            change(defined.STATUS, command.queue, self.clock(), status=command.status, who=command.who)
        )
        self._follow_status(command.queue)

    def remove(self, command: RemoveQueue) -> None:
        self.check_open()
        known = self.definition(command.queue)
        now = self.clock()
        self.definitions.propose(change(defined.REMOVED, command.queue, now, who=command.who))
        self._leave(command.queue)
        self.topology.remove(command.queue, known)
        held = self.consuming.hands.drop(command.queue)
        ended = [Event(command.queue, State.DEAD, item.number, 1, reason="queue removed") for item in held]
        self.consuming.tell(ended, now)

    def info(self, name: str) -> QueueInfo:
        self.check_open()
        known = self.definition(name)
        seen = self.topology.look(name) if known.status is not Status.NOT_INITIALIZED else None
        if seen is None and self._is_destroyed(name, known):
            raise NotFound(f"there is no queue {name!r} any more: it ended with its last consumer")
        parked = self.topology.look(name + DEAD) if known.parks else None
        here = self._fetchers_of(name)
        hands = self.consuming.hands
        with self._guard:
            consumers = tuple(consumer for queue, consumer in self._subscribed.values() if queue == name)
        if seen is not None and seen.consumer_count > len(here) and not consumers:
            consumers = tuple(f"elsewhere-{number}" for number in range(1, seen.consumer_count - len(here) + 1))
        waiting = seen.message_count if seen is not None else 0
        return QueueInfo(
            name, known.status, known.options, 0, waiting + sum(one.held for one in here), 0,
            hands.of(name), parked.message_count if parked else 0, 0, 0, consumers,
            dict(self.consuming.counts.get(name, {})), self._waiting_pulls(name, known.status), hands.late,
        )  # fmt: skip

    def _waiting_pulls(self, name: str, status: Status) -> int:
        """Pulls have asked, and in this order, where the queue gives; elsewhere they wait until it does."""
        with self._guard:
            fetcher = self._fetchers.get(name)
            return fetcher.waiting if fetcher is not None and status in GIVING else self.pulls.get(name, 0)

    def infos(self) -> list[QueueInfo]:
        self.check_open()
        found = []
        for name in sorted(self.definitions.queues):
            try:
                found.append(self.info(name))
            except NotFound:
                continue  # removed in this moment
        return found

    def _is_destroyed(self, queue: str, definition: QueueDefinition) -> bool:
        """Whether RabbitMQ deleted a queue some time after its last consumer, who may have been killed."""
        by_itself = definition.options.auto_destroy is AutoDestroy.NO_CONSUMERS
        if by_itself and not self.topology.knows(queue):
            self.definitions.propose(change(defined.REMOVED, queue, self.clock()))
            return True
        return False

    def _options(self, named: NamedOptions) -> QueueOptions:
        return self.options.queue_defaults if named is None else self.options.queue_defaults.with_values(named)

    # Consumers

    def fetcher(self, queue: str) -> Fetcher:
        """What all pulls of this process share."""
        with self._guard:
            self.check_open()
            found = self._fetchers.get(queue)
            if found is None:
                found = self._fetchers[queue] = Fetcher(
                    self.consuming_connection, queue, on_gone=lambda: self.topology.forget(queue)
                )
            return found

    def subscribe(self, queue: str, consumer: str, credit: int, *, exclusive: bool) -> Fetcher:
        """A consumer of its own. It must be started."""
        with self._guard:
            self.check_open()
            if any(taken == (queue, consumer) for taken in self._subscribed.values()):
                raise Conflict(f"queue {queue!r} already has a consumer named {consumer!r}")
            fetcher = Fetcher(
                self.consuming_connection, queue, prefetch=min(credit, 65535), exclusive=exclusive,
                on_gone=lambda: self._come_back(queue, fetcher),
            )  # fmt: skip
            self._subscribed[fetcher] = (queue, consumer)
        return fetcher

    def unsubscribe(self, fetcher: Fetcher) -> None:
        """A consumer leaves: what it was given and did not answer goes back, and so does what it was not given."""
        with self._guard:
            known = self._subscribed.pop(fetcher, None)
        if known is None:
            return
        queue, consumer = known
        channel, waiting = fetcher.channel, []
        unseen = fetcher.close()
        if channel is not None:
            if (given := self.consuming.give_back(queue, channel, unseen)) is not None:
                waiting.append(given)
            for lease in self.consuming.hands.held_through(fetcher):
                lost = Settlement(Outcome.NACK, "consumer lost", consumer=consumer)
                work = self.consuming.settle(lease, lost, None)
                if not isinstance(work, int):
                    waiting.append(work())
            for future in waiting:
                _wait(future)
            try:
                channel.close()
            except AmqpError as error:
                _LOG.debug("a channel was lost before it was closed: %s", error)
        self._post(NoticeKind.CONSUMER_UNSUBSCRIBED, queue, consumer)
        if not self._closing:
            self._destroy_unused(queue)

    def _destroy_unused(self, queue: str) -> None:
        """A queue ends with its last consumer, where that was asked for. Were it killed, RabbitMQ does it later."""
        known = self.definitions.queues.get(queue)
        if known is None or known.options.auto_destroy is not AutoDestroy.NO_CONSUMERS or self._fetchers_of(queue):
            return
        seen = self.topology.look(queue)
        if seen is None or not seen.consumer_count:
            self.remove(RemoveQueue(queue))

    def announce(self, queue: str, consumer: str) -> None:
        self._post(NoticeKind.CONSUMER_SUBSCRIBED, queue, consumer)

    def start(self, fetcher: Fetcher) -> None:
        """Begin to consume, or consume more. A queue that is gone is made again. Waits for RabbitMQ."""
        self.check_up()
        try:
            fetcher.start()
        except ChannelClosed as closed:
            if closed.code != _NOT_FOUND:
                raise
            self.topology.remake(fetcher.queue)
            fetcher.start()

    def get(self, fetcher: Fetcher, count: int) -> Arrival:
        """What a queue has now, in its order, and nothing ahead."""
        taken = fetcher.take(count)
        if len(taken) == count:
            return taken
        self.check_up()
        channel = fetcher.open_channel()
        while len(taken) < count:
            try:
                one = channel.get(fetcher.queue)
            except ChannelClosed as closed:
                if closed.code != _NOT_FOUND:
                    raise
                self.topology.remake(fetcher.queue)
                break
            if one is None:
                break
            taken.append(one)
            fetcher.given(1)
            rest = min(one.message_count or 0, count - len(taken))
            if rest >= _BURST:
                taken += fetcher.burst(rest)
        return taken

    @contextlib.contextmanager
    def waiting_pull(self, queue: str) -> Iterator[None]:
        with self._guard:
            self.pulls[queue] = self.pulls.get(queue, 0) + 1
        try:
            yield
        finally:
            with self._guard:
                self.pulls[queue] -= 1

    def check_up(self) -> None:
        """Raise rather than wait when there is no connection."""
        self.check_open()
        if not self.consuming_connection.up:
            raise ConnectionLost(
                f"there is no connection to {self.settings.connection}: {self.consuming_connection.last_error}; "
                "it is tried again by itself"
            )

    # What happened

    def log(self) -> EventLog:
        """The event log, where one is kept."""
        with self._guard:
            self.check_open()
            if isinstance(self.records, NoRecords):
                raise Unsupported(
                    "no event log is kept here (log=no in the URL), so what happened cannot be read", "log"
                )
            if self._log is None:
                self._log = StreamLog(self.settings.connection, self.settings.log or STREAM)
            return self._log

    def document(self, message_id: str) -> Document | None:
        """The life of a message, from the event log; None if that does not know it."""
        log = self.log()
        self.records.flush()
        offset = log.offset_of(message_id)
        found = None if offset is None else log.message(offset)
        if offset is None or found is None:
            return None
        message, queues = found
        return document(offset, message, queues, log.events_of(offset))

    def is_giving(self, queue: str) -> bool:
        known = self.definitions.queues.get(queue)
        return known is None or known.status in GIVING

    # Life

    def background(self, work: Callable[[], None]) -> None:
        """Do something that waits for RabbitMQ, for somebody who must not."""

        def run() -> None:
            try:
                work()
            except RemudaError as error:
                _LOG.warning("work for RabbitMQ could not be done, and its messages stay where they are: %s", error)
            except Exception:
                _LOG.exception("work for RabbitMQ failed; its messages stay where they are")

        with contextlib.suppress(RuntimeError):  # closed: what was delivered goes back with the connection
            self._executor.submit(run)

    def close(self) -> None:
        with self._guard:
            if self.closed:
                return
            fetchers = list(self._fetchers.values())
            subscribed = list(self._subscribed)
            self._closing = True
        waiting = []
        if self.consuming_connection.up:
            for fetcher in subscribed:
                try:
                    self.unsubscribe(fetcher)
                except RemudaError as error:
                    _LOG.warning("a consumer could not be closed in order: %s", error)
            for fetcher in fetchers:
                unseen = fetcher.close()
                if unseen and fetcher.channel is not None:
                    waiting.append(self.consuming.give_back(fetcher.queue, fetcher.channel, unseen))
        with self._guard:
            self.closed = True
        for fetcher in (*fetchers, *subscribed):
            fetcher.close()
        for future in waiting:
            if future is not None:
                _wait(future)
        self._wake.set()
        self._let_go()

    def _let_go(self) -> None:
        self.closed = True
        self._executor.shutdown(wait=True, cancel_futures=True)
        if self.publishing_connection.up:
            self.sender.close(5.0)
        try:
            self.records.close()
        except RemudaError as error:
            _LOG.warning("the event log lacks the last moments of this process: %s", error)
        finally:
            if self._log is not None:
                self._log.close()
            for connection in (self.publishing_connection, self.consuming_connection, self._following_connection):
                connection.close(3.0)
            self.sender.fail_rest()
            self.publishing.fail_rest()
            self.sender.close(0)
            self._wake.set()
            if self._upkeep.ident is not None and threading.current_thread() is not self._upkeep:
                self._upkeep.join(5)
            self.notices.close()

    def check_open(self) -> None:
        if self.closed:
            raise BrokerClosed(CLOSED)

    # Inside

    def _run(self) -> None:
        while not self.closed:
            self._wake.wait(self._pause())
            self._wake.clear()
            if self.closed:
                return
            try:
                self._tick()
            except RemudaError as error:
                _LOG.debug("upkeep goes on later: %s", error)
            except Exception:
                _LOG.exception("upkeep failed; it goes on")

    def _pause(self) -> float:
        deadline = self.consuming.hands.next_deadline
        if deadline is None:
            return _BEAT
        return min(max((deadline - self.clock()) / 1_000_000, 0.001), _BEAT)

    def _tick(self) -> None:
        for lease in self.consuming.hands.overdue(self.clock()):
            self.consuming.time_out(lease)
        with self._guard:
            fetchers = list(self._fetchers.values())
        for fetcher in fetchers:
            unseen = fetcher.rest()
            if unseen and fetcher.channel is not None:
                self.consuming.give_back(fetcher.queue, fetcher.channel, unseen)
        if self.consuming_connection.up and self._claimed_at != self.consuming_connection.connects:
            self._claim_worker()

    def _claim_worker(self) -> None:
        """A worker number that no other process has: a queue of that name is ours alone, as long as we are there."""
        self._claimed_at = self.consuming_connection.connects
        if self.options.worker is not None:
            return
        if self._claim is None:
            self._claim = self.consuming_connection.channel()
        first = self.ids.worker if self.ids.worker else random.randrange(1, WORKERS)
        for number in _numbers_from(first):
            try:
                self._claim.declare_queue(f"remuda.worker.{number}", durable=False, exclusive=True, auto_delete=True)
            except ChannelClosed as closed:
                if closed.code != _RESOURCE_LOCKED:
                    raise
            else:
                if number != self.ids.worker:
                    self.ids.worker = number
                return
        raise Conflict(f"all {WORKERS - 1} worker numbers are taken; give this process one of its own: worker=…")

    def _reconnected(self) -> None:
        self._wake.set()

    def _defined(self, change: Change) -> None:
        """Called from the connection's thread for every change of the definitions, wherever it was made."""
        self.publishing.defined()
        kinds = {
            defined.CREATED: NoticeKind.QUEUE_CREATED,
            defined.REMOVED: NoticeKind.QUEUE_REMOVED,
            defined.STATUS: NoticeKind.STATUS_CHANGED,
            defined.INITIALIZED: NoticeKind.STATUS_CHANGED,
        }
        kind = kinds.get(change.action)
        if kind is not None and self.notices.wanted:
            detail = change.status.value if change.status is not None else None
            if change.action == defined.INITIALIZED:
                detail = Status.RUNNING.value
            elif change.action == defined.CREATED:
                detail = None
            self.notices.post([Notice(kind, change.name, change.time, detail=detail)])
        if change.action in (defined.STATUS, defined.INITIALIZED) and self._fetchers_of(change.name):
            self.background(lambda: self._follow_status(change.name))
        if change.action == defined.REMOVED:
            self.topology.forget(change.name)
            if self._fetchers_of(change.name):
                self.background(lambda: self._leave(change.name))

    def _fetchers_of(self, queue: str) -> list[Fetcher]:
        with self._guard:
            pulls = [fetcher for name, fetcher in self._fetchers.items() if name == queue]
            return pulls + [fetcher for fetcher, (name, _) in self._subscribed.items() if name == queue]

    def _follow_status(self, queue: str) -> None:
        giving = self.is_giving(queue)
        for fetcher in self._fetchers_of(queue):
            if not giving:
                unseen = fetcher.pause()
                if unseen and fetcher.channel is not None:
                    self.consuming.give_back(queue, fetcher.channel, unseen)
            elif fetcher.resume():
                self.topology.make(queue, self.definition(queue))
                self.start(fetcher)

    def _leave(self, queue: str) -> None:
        """The queue is removed: whoever waits for it is told."""
        with self._guard:
            pull = self._fetchers.pop(queue, None)
            subscribed = [fetcher for fetcher, (name, _) in self._subscribed.items() if name == queue]
            for fetcher in subscribed:
                del self._subscribed[fetcher]
        for fetcher in ([pull] if pull is not None else []) + subscribed:
            fetcher.close()

    def _come_back(self, queue: str, fetcher: Fetcher) -> None:
        """RabbitMQ ended a consumer, mostly because its queue went away: it is made again, and consumed again."""
        self.topology.forget(queue)

        def again() -> None:
            while not fetcher.closed and not self.closed and queue in self.definitions.queues:
                try:
                    self.topology.remake(queue)
                    self.start(fetcher)
                    return
                except RemudaError as error:
                    _LOG.warning("queue %s cannot be consumed at the moment: %s; trying again", queue, error)
                    time.sleep(1.0)

        self.background(again)

    def _post(self, kind: NoticeKind, queue: str, consumer: str) -> None:
        if self.notices.wanted:
            self.notices.post([Notice(kind, queue, self.clock(), consumer=consumer)])


def _wait(future: Future[int]) -> None:
    try:
        future.result(10)
    except (RemudaError, TimeoutError) as error:
        _LOG.debug("what was given back stays with RabbitMQ: %s", error)


def _numbers_from(first: int) -> Iterator[int]:
    for step in range(WORKERS - 1):
        yield (first - 1 + step) % (WORKERS - 1) + 1


def _differences(named: NamedOptions, standing: QueueOptions) -> Differences:
    if named is None:
        return {}
    return {name: (value, getattr(standing, name)) for name, value in named.items() if value != getattr(standing, name)}


def _check_name(name: str) -> None:
    if name.startswith("amq."):
        raise InvalidOption(f"queue {name!r} cannot be made: RabbitMQ keeps names that begin with amq. for itself")
    if len((name + DEAD).encode()) > 255:
        raise InvalidOption(
            f"queue {name[:40]!r}… cannot be made: with {DEAD!r} for its dead letters the name is longer than 255 bytes"
        )
    if name.endswith(DEAD):
        raise InvalidOption(f"queue {name!r} cannot be made: names that end with {DEAD!r} are for dead letters")
