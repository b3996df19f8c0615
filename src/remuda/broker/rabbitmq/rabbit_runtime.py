"""The broker's machinery on RabbitMQ: two connections, and the parts that share them.

One connection publishes, the other consumes: RabbitMQ stops reading from publishers when it is short of memory, and
acknowledgements must still reach it then.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.amqp.client.connection import Connection
from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.broker.embedded.delivering.notices import NoticeBoard
from remuda.broker.options import BrokerOptions
from remuda.broker.rabbitmq import url_settings
from remuda.broker.rabbitmq.consuming.fetcher import Fetcher
from remuda.broker.rabbitmq.consuming.handing_out import Consuming
from remuda.broker.rabbitmq.consuming.queue_consumers import Consumers
from remuda.broker.rabbitmq.consuming.settler import Settler
from remuda.broker.rabbitmq.publishing.confirmed_sender import Sender
from remuda.broker.rabbitmq.publishing.publication import Publishing
from remuda.broker.rabbitmq.publishing.routers import Routers
from remuda.broker.rabbitmq.record_sinks import NoRecords, RecordSink, StreamRecords
from remuda.broker.rabbitmq.shared_state import queue_definitions as defined
from remuda.broker.rabbitmq.shared_state.definitions_journal import Definitions
from remuda.broker.rabbitmq.shared_state.message_ids import Ids
from remuda.broker.rabbitmq.shared_state.queue_declarations import Queues
from remuda.broker.rabbitmq.shared_state.queue_definitions import Change, change
from remuda.broker.rabbitmq.shared_state.rabbit_topology import RabbitTopology
from remuda.broker.rabbitmq.support import DEAD
from remuda.broker.rabbitmq.upkeep import Upkeep, WorkerClaim
from remuda.broker.rabbitmq.url_settings import RabbitSettings
from remuda.log.eventlog import EventLog
from remuda.log.streams.stream_numbers import STREAM
from remuda.model.document import Document, document
from remuda.model.errors import NotFound, RemudaError, Unsupported
from remuda.model.operations.commands import RemoveQueue, SetStatus
from remuda.model.operations.results import Health, QueueInfo
from remuda.model.queues.notices import Notice, NoticeKind
from remuda.model.queues.options import AutoDestroy, Status
from remuda.model.records import Event
from remuda.model.state import State

if TYPE_CHECKING:
    from remuda.log.streams.stream_log import StreamLog

_LOG: Final = logging.getLogger("remuda.rabbitmq")
_AGAIN: Final = 1.0
"""Seconds before definitions that could not be followed are read again."""
_FAREWELL: Final = 5.0
"""Seconds that closing waits for RabbitMQ if it does not answer; what is unanswered goes back with the connection."""
_HASTE: Final = 0.5
"""Seconds for each further step of closing once it did not answer."""


class Runtime:
    """Everything that the brokers for threads and for coroutines share."""

    def __init__(
        self, url: str, options: BrokerOptions, clock: Clock | None = None, records: RecordSink | None = None
    ) -> None:
        self.settings = RabbitSettings.read(url)
        self.options = options
        self.clock: Clock = clock or steady_clock()
        self.records: RecordSink = records or NoRecords()
        self._keeps_log = records is None and self.settings.log is not None
        self._log: StreamLog | None = None
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self.notices = NoticeBoard()
        plain = self.settings.connection
        self.publishing_connection = Connection(msgspec.structs.replace(plain, name=plain.name or "remuda publishes"))
        self.consuming_connection = Connection(
            msgspec.structs.replace(plain, name=plain.name or "remuda consumes"), on_change=lambda: self._upkeep.wake()
        )
        self.sender = Sender(self.publishing_connection)
        self.definitions = Definitions(
            self.consuming_connection, self.sender, self._defined, self._lost_definitions, self.clock,
            plain.reply_timeout,
        )  # fmt: skip
        self.topology = RabbitTopology(
            self.consuming_connection, self.definitions, self.settings.queue_type, self.clock,
            max_priority=self.settings.max_priority, uses_existing=self.settings.uses_existing,
        )  # fmt: skip
        self.queues = Queues(self.definitions, self.topology, options, self.clock)
        self.settler = Settler(self.sender, self.topology, self.queues.ensure)
        self.ids = Ids(options.worker or 0)
        self.publishing = Publishing(
            self.sender, self.topology, self.definitions, self.ids, options, self.clock, self.records, self.notices,
            self.background,
        )  # fmt: skip
        self.routers = Routers(self.publishing, self.queues, self.definitions, self.clock)
        self.consuming = Consuming(
            self.definitions, self.settler, self.clock, self.records, self.notices, self.background
        )
        self.publishing.counts = self.consuming.counts
        self.consumers = Consumers(
            self.consuming_connection, self.definitions, self.topology, self.queues, self.consuming, self.background
        )
        self._claim = WorkerClaim(self.consuming_connection, self.ids, options.worker)
        self._upkeep = Upkeep(self.consuming, self.consumers, self._claim, self.clock)
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="remuda-rabbitmq")

    def open(self) -> Runtime:
        try:
            for connection in (self.consuming_connection, self.publishing_connection):
                connection.open(min(url_settings.OPEN, connection.options.reply_timeout))
            self.sender.open()
            self.topology.open()
            self._claim.renew()
            self.definitions.follow()
            if self._keeps_log and self.settings.log is not None:
                records = StreamRecords(self.settings.connection, self.settings.log)
                self.records = self.publishing.records = self.consuming.records = records
        except BaseException:
            self._release()
            raise
        self._upkeep.start()
        return self

    @property
    def closed(self) -> bool:
        return self.queues.closed

    def check_open(self) -> None:
        self.queues.check_open()

    def health(self) -> Health:
        """Live: it recovers by itself. Ready: it is connected, and RabbitMQ accepts messages."""
        problems = {}
        for name, connection in (("publishing", self.publishing_connection), ("consuming", self.consuming_connection)):
            if not connection.up:
                problems[name] = f"no connection to {connection.options}: {connection.last_error}"
            elif connection.blocked is not None:
                problems[name] = f"RabbitMQ is not accepting messages: {connection.blocked}"
        ready = not self.closed and not problems
        if self.definitions.trouble is not None:
            problems["definitions"] = self.definitions.trouble
        if self.records.trouble is not None:
            problems["log"] = self.records.trouble
        return Health(not self.closed, ready, problems)

    # Queues with their consumers

    def set_status(self, command: SetStatus) -> None:
        self.queues.set_status(command)
        self.consumers.follow_status(command.queue)

    def remove(self, command: RemoveQueue) -> None:
        self.check_open()
        known = self.queues.definition(command.queue)
        now = self.clock()
        self.definitions.propose(change(defined.REMOVED, command.queue, now, who=command.who))
        self.consumers.leave(command.queue)
        self.topology.remove(command.queue, known)
        held = self.consuming.held.drop(command.queue)
        ended = [Event(command.queue, State.DEAD, number, 1, reason="queue removed") for number in held]
        self.consuming.record(ended, now)

    def info(self, name: str) -> QueueInfo:
        self.check_open()
        known = self.queues.definition(name)
        seen = self.topology.look(name) if known.status is not Status.NOT_INITIALIZED else None
        if seen is None and self.queues.forget_destroyed(name, known):
            raise NotFound(f"there is no queue {name!r}: it was removed with its last consumer")
        parked = self.topology.look(name + DEAD) if known.parks else None
        here = self.consumers.of(name)
        held = self.consuming.held
        names = self.consumers.names(name)
        if seen is not None and not names:
            elsewhere = seen.consumer_count - sum(one.consumers for one in here)
            names = tuple(f"elsewhere-{number}" for number in range(1, elsewhere + 1))
        waiting = seen.message_count if seen is not None else 0
        return QueueInfo(
            name, known.status, known.options, 0, waiting + sum(one.held for one in here), 0,
            held.of(name), parked.message_count if parked else 0, 0, 0, names,
            dict(self.consuming.counts.get(name, {})), self.consumers.waiting_pulls(name, known.status), held.late,
        )  # fmt: skip

    def infos(self) -> list[QueueInfo]:
        self.check_open()
        found = []
        for name in sorted(self.definitions.queues):
            try:
                found.append(self.info(name))
            except NotFound:
                continue  # removed in this moment
        return found

    def unsubscribe(self, fetcher: Fetcher) -> None:
        """A consumer leaves. A queue with `auto_destroy=no-consumers` is removed with its last one; if that is killed,
        RabbitMQ removes it later."""
        known = self.consumers.unsubscribe(fetcher)
        if known is None:
            return
        queue, consumer = known
        self.announce(NoticeKind.CONSUMER_UNSUBSCRIBED, queue, consumer)
        definition = self.definitions.queues.get(queue)
        ends = definition is not None and definition.options.auto_destroy is AutoDestroy.NO_CONSUMERS
        if not self._closing.is_set() and ends and not self.consumers.of(queue):
            seen = self.topology.look(queue)
            if seen is None or not seen.consumer_count:
                self.remove(RemoveQueue(queue))

    def announce(self, kind: NoticeKind, queue: str, consumer: str) -> None:
        if self.notices.wanted:
            self.notices.post([Notice(kind, queue, self.clock(), consumer=consumer)])

    # The event log

    def log(self) -> EventLog:
        """The event log, if there is one."""
        self.check_open()
        if isinstance(self.records, NoRecords):
            raise Unsupported("there is no event log to read: the URL has log=no", "log")
        if self._log is None:
            self.records.flush()  # so that the stream exists
        with self._guard:
            if self._log is None:
                from remuda.log.streams.stream_log import StreamLog  # loads Arrow

                self._log = StreamLog(self.settings.connection, self.settings.log or STREAM)
            return self._log

    def document(self, message_id: str) -> Document | None:
        """A message with its life in each of its queues, from the event log; None if it is not there."""
        log = self.log()
        self.records.flush()
        offset = log.offset_of(message_id)
        found = None if offset is None else log.message(offset)
        if offset is None or found is None:
            return None
        message, queues = found
        return document(offset, message, queues, log.events_of(offset))

    # Life

    def background(self, work: Callable[[], None]) -> None:
        """Do work that waits for RabbitMQ in another thread, for a caller that must not wait."""

        def run() -> None:
            try:
                work()
            except RemudaError as error:
                _LOG.warning("background work failed, and its messages stay where they are: %s", error)
            except Exception:
                _LOG.exception("background work failed; its messages stay where they are")

        with contextlib.suppress(RuntimeError):  # closed: what was delivered goes back with the connection
            self._executor.submit(run)

    def close(self) -> None:
        with self._guard:
            if self._closing.is_set():
                return
            self._closing.set()
        for connection in (self.publishing_connection, self.consuming_connection):
            connection.hurry(_FAREWELL)
        if self.consuming_connection.up:
            for fetcher in self.consumers.subscribed():
                try:
                    self.unsubscribe(fetcher)
                except RemudaError as error:
                    _LOG.warning("a consumer could not be closed cleanly: %s", error)
        self.queues.closed = True
        for fetcher in self.consumers.subscribed():
            fetcher.close()
        self.consumers.close_pulls()
        self._release()

    def _release(self) -> None:
        self.queues.closed = True
        self._closing.set()
        self._executor.shutdown(wait=True, cancel_futures=True)
        connections = (self.publishing_connection, self.consuming_connection)
        mute = any(connection.mute for connection in connections)
        if self.publishing_connection.up:
            self.sender.close(_HASTE if mute else _FAREWELL)
        try:
            self.records.close()
        except RemudaError as error:
            _LOG.warning("the event log is missing the last moments of this process: %s", error)
        finally:
            if self._log is not None:
                self._log.close()
            for connection in connections:
                connection.close(_HASTE if mute else 3.0)
            self.sender.fail_rest()
            self.publishing.fail_rest()
            self.sender.close(0)
            self._upkeep.close()
            self.notices.close()

    # Following definitions

    def _lost_definitions(self) -> None:
        threading.Thread(target=self._follow_again, name="remuda-rabbitmq-definitions", daemon=True).start()

    def _follow_again(self) -> None:
        """Follow the definitions again after the connection was lost."""
        while not self._closing.is_set():
            if not self.consuming_connection.await_up(_AGAIN):
                if self.consuming_connection.failure is not None:
                    return
                continue
            try:
                self.definitions.follow()
                return
            except RemudaError as error:
                _LOG.warning("definitions of queues cannot be read; trying again: %s", error)
                self._closing.wait(_AGAIN)

    def _defined(self, change: Change) -> None:
        """Called for every change of a queue's definition, in any process; mostly by the connection's thread."""
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
        if change.action in (defined.STATUS, defined.INITIALIZED) and self.consumers.of(change.name):
            self.background(lambda: self.consumers.follow_status(change.name))
        if change.action == defined.REMOVED:
            self.topology.forget(change.name)
            if self.consumers.of(change.name):
                self.background(lambda: self.consumers.leave(change.name))
