"""A consumer: deliveries come from the broker in batches and go out in one write, as fast as the client reads them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from remuda.amqp.codec.properties import with_headers
from remuda.amqp.codec.tables import Table
from remuda.broker.delivery import AsyncDelivery
from remuda.broker.port import AsyncSubscription
from remuda.model.errors import RemudaError
from remuda.model.messages import Messages
from remuda.model.settlement import Outcome, Settlement
from remuda.server.amqp.declarations.queues import QueueDeclaration
from remuda.server.amqp.messages.outbound import deliver_frames, properties_of
from remuda.server.amqp.protocol.channels import Channel

if TYPE_CHECKING:
    from remuda.server.amqp.session import ClientSession

_log = logging.getLogger("remuda.amqp")
_PIECE: Final = 1 << 20
"""Bytes to write before checking whether the client still reads."""

BATCH: Final = 200
"""The most messages in one delivery from the broker."""
WINDOW: Final = 2000
"""How many messages may be on their way to a consumer without a prefetch limit, beyond those it holds."""
DONE: Final = Settlement(Outcome.ACK)
AGAIN: Final = Settlement(Outcome.NACK, "requeued", front=True)
REJECTED: Final = Settlement(Outcome.DEAD, "rejected")
TOO_OFTEN: Final = Settlement(Outcome.DEAD, "delivery_limit")
UNSEEN: Final = Settlement(Outcome.RELEASE, "its consumer is gone", front=True)


class AmqpConsumer:
    """One `basic.consume`."""

    def __init__(
        self, session: ClientSession, channel: Channel, tag: str, queue: str, declaration: QueueDeclaration | None,
        no_ack: bool, exclusive: bool,
    ) -> None:  # fmt: skip
        self.session = session
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.subscription: AsyncSubscription | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopped = False
        self.renews = False
        """Whether its leases are renewed, since its queue wants answers sooner than AMQP's consumers give them."""
        self.arguments: Table = {}
        self.timeout = session.server.limits.consumer_seconds
        self._limit = declaration.delivery_limit if declaration is not None else None
        self._counts = declaration is not None and declaration.is_quorum
        self._credit = 0
        self._unlimited = False
        self._under_way = 0
        if declaration is not None and declaration.consumer_timeout:
            self.timeout = declaration.consumer_timeout / 1000

    def credit_for(self, prefetch: int) -> int:
        """How many messages it may hold; a `prefetch` of 0 sets no limit."""
        self._unlimited = prefetch == 0 or self.no_ack
        self._credit = WINDOW if self._unlimited else prefetch
        return self._credit

    @property
    def prefetch(self) -> int:
        """How many messages it may hold; 0 sets no limit."""
        return 0 if self._unlimited else self._credit

    def start(self, subscription: AsyncSubscription) -> None:
        self.subscription = subscription
        self.task = asyncio.create_task(self._run(subscription))

    async def set_prefetch(self, prefetch: int) -> None:
        """Change how many messages it may hold."""
        before = self._credit
        credit = self.credit_for(prefetch)
        if self._unlimited:
            credit = self._credit = max(before, self._under_way + WINDOW)
        if self.subscription is not None and credit != before:
            await self.subscription.set_credit(credit)

    async def stop(self, *, keep: bool) -> None:
        """Stop consuming. What the client holds goes back to the queue or, with `keep`, stays with it."""
        self.stopped = True
        if self.subscription is not None:
            try:
                await self.subscription.close(keep=keep)
            except RemudaError as error:
                _log.debug("a consumer of queue %s could not be stopped: %s", self.queue, error)
        if self.task is not None and self.task is not asyncio.current_task():
            await asyncio.wait([self.task], timeout=5)

    def answered(self, count: int) -> None:
        """The client has answered this many messages."""
        self._under_way -= count

    async def _run(self, subscription: AsyncSubscription) -> None:
        session = self.session
        try:
            while (delivery := await subscription.receive()) is not None:
                await session.writable.wait()
                if self.stopped:
                    await delivery.answer(UNSEEN, wait=False)
                    continue
                await self._deliver(delivery)
        except RemudaError as error:
            _log.warning("a consumer of queue %s ended: %s", self.queue, error)
        except Exception as error:
            session.report(f"delivering from queue {self.queue}", error)
        if not self.stopped:
            session.cancelled(self)

    async def _deliver(self, delivery: AsyncDelivery) -> None:
        session = self.session
        messages, redelivered = delivery.messages, delivery.redelivered
        count = len(messages.bodies)
        properties: list[bytes] | None = None
        rows: list[int] | None = None
        if True in redelivered and (self._limit is not None or self._counts):
            attempts = delivery.attempts
            if self._limit is not None:
                over = [row for row in range(count) if attempts[row] > self._limit + 1]
                if over:
                    session.settle(delivery, over, TOO_OFTEN)
                    rows = [row for row in range(count) if attempts[row] <= self._limit + 1]
                    if not rows:
                        return
            if self._counts:
                properties = [
                    with_headers(properties_of(message), {"x-delivery-count": attempts[row] - 1})
                    if attempts[row] > 1 else properties_of(message)
                    for row, message in enumerate(messages)
                ]  # fmt: skip
        if rows is not None:
            messages = messages.take(rows)
            redelivered = [redelivered[row] for row in rows]
            properties = None if properties is None else [properties[row] for row in rows]
            count = len(rows)
        sizes = list(map(len, messages.bodies))
        if sum(sizes) <= _PIECE:
            self._send(delivery, range(count) if rows is None else rows, messages, redelivered, properties)
            return
        # Large messages are copied several times on their way out: send no more of them than the client reads.
        chosen = list(range(count)) if rows is None else rows
        for start, stop in _pieces(sizes):
            await session.writable.wait()
            if self.stopped:
                session.settle(delivery, chosen[start:], UNSEEN)
                return
            part = None if properties is None else properties[start:stop]
            self._send(delivery, chosen[start:stop], messages.slice(start, stop), redelivered[start:stop], part)
            session.flush_socket()

    def _send(
        self, delivery: AsyncDelivery, rows: Sequence[int], messages: Messages, redelivered: list[bool],
        properties: list[bytes] | None,
    ) -> None:  # fmt: skip
        """Send these rows of a delivery."""
        session, channel, count = self.session, self.channel, len(rows)
        churn = session.server.churn
        churn["deliver_no_ack" if self.no_ack else "deliver"] += count
        churn["redeliver"] += redelivered.count(True)
        if self.no_ack:
            first = channel.unanswered.skip(count)
        else:
            first = channel.unanswered.add(delivery, rows, self, time.monotonic(), self._limit)
            self._under_way += count
        session.write(
            deliver_frames(
                channel.number, self.tag, first, messages, redelivered, session.protocol.frame_max, properties
            )
        )
        if self.no_ack:
            session.settle(delivery, None if count == len(delivery) else rows, DONE)
        elif self._unlimited and self._under_way + WINDOW // 2 > self._credit:
            self._credit = self._under_way + WINDOW
            if self.subscription is not None:
                session.spawn(self.subscription.set_credit(self._credit))


def _pieces(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of rows to write together: as many as fit, and at least one."""
    start = size = 0
    for row, one in enumerate(sizes):
        if row > start and size + one > _PIECE:
            yield start, row
            start, size = row, 0
        size += one
    yield start, len(sizes)
