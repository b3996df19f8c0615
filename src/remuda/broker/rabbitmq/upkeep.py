"""Periodic work: overdue answers, fetchers that are no longer needed, and this process's worker number."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.amqp.errors import ChannelClosed
from remuda.broker.rabbitmq.consuming.handing_out import Consuming
from remuda.broker.rabbitmq.consuming.queue_consumers import Consumers
from remuda.broker.rabbitmq.shared_state.message_ids import Ids
from remuda.jitter import CHANCE
from remuda.model.errors import Conflict, RemudaError
from remuda.model.ids import WORKERS

_LOG: Final = logging.getLogger("remuda.rabbitmq")
_BEAT: Final = 0.25
_RESOURCE_LOCKED: Final = 405


class Upkeep:
    """A thread that wakes when something is due."""

    def __init__(
        self, consuming: Consuming, consumers: Consumers, claim: WorkerClaim, clock: Callable[[], int]
    ) -> None:
        self._consuming = consuming
        self._consumers = consumers
        self._claim = claim
        self._clock = clock
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="remuda-rabbitmq-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._pause())
            self._wake.clear()
            if self._closed:
                return
            try:
                self._tick()
            except RemudaError as error:
                _LOG.debug("upkeep will continue later: %s", error)
            except Exception:
                _LOG.exception("a round of upkeep failed; the next one follows")

    def _pause(self) -> float:
        deadline = self._consuming.held.next_deadline
        if deadline is None:
            return _BEAT
        return min(max((deadline - self._clock()) / 1_000_000, 0.001), _BEAT)

    def _tick(self) -> None:
        for lease in self._consuming.held.overdue(self._clock()):
            self._consuming.time_out(lease)
        self._consumers.rest()
        self._claim.renew()


class WorkerClaim:
    """A worker number for ids that no other process has: claimed by an exclusive queue of that name."""

    def __init__(self, connection: Connection, ids: Ids, fixed: int | None) -> None:
        self._connection = connection
        self._ids = ids
        self._fixed = fixed
        self._channel: Channel | None = None
        self._claimed_at = -1

    def renew(self) -> None:
        """Claim a number, at first and after every reconnection. Waits for RabbitMQ."""
        connects = self._connection.connects
        if not self._connection.up or self._claimed_at == connects:
            return
        if self._fixed is None:
            self._take_one()
        self._claimed_at = connects

    def _take_one(self) -> None:
        if self._channel is None:
            self._channel = self._connection.channel()
        first = self._ids.worker if self._ids.worker else CHANCE.randrange(1, WORKERS)
        for number in _numbers_from(first):
            try:
                self._channel.declare_queue(f"remuda.worker.{number}", durable=False, exclusive=True, auto_delete=True)
            except ChannelClosed as closed:
                if closed.code != _RESOURCE_LOCKED:
                    raise
            else:
                if number != self._ids.worker:
                    self._ids.worker = number
                return
        raise Conflict(f"all {WORKERS - 1} worker numbers are taken; set the broker option 'worker'")


def _numbers_from(first: int) -> Iterator[int]:
    for step in range(WORKERS - 1):
        yield (first - 1 + step) % (WORKERS - 1) + 1
