"""Ends that are brokers of Remuda: this server's own, or one at `remuda://`.

Between two of them, each message arrives once. What the source hands out a second time is looked for at the target, by
its id and by the mark that says where it came from.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import msgspec

from remuda.broker.delivery import AsyncDelivery
from remuda.broker.opening import open_broker
from remuda.broker.port import AsyncBroker, AsyncSubscription, Broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import BrokerClosed, Duplicate, NotFound, QueueFull, QueueNotAccepting, RemudaError
from remuda.model.messages import Messages, cell
from remuda.model.queues.routing import Binding
from remuda.model.queues.system_queues import UNROUTED
from remuda.server.amqp.declarations.exchanges import TOPICS
from remuda.server.amqp.messages.inbound import EXCHANGE
from remuda.server.shovels.definition import Place, Shovel
from remuda.server.shovels.ends import Answer

MARK: Final = "remuda-shovel"
"""The header that says which shovel brought a message, and where it stood at the source."""
BATCH: Final = 1000


class Reached:
    """A broker, and how its queues and exchanges are called there."""

    def __init__(self, place: Place, uri: str, *, here: AsyncBroker, name_of: Callable[[str, str], str]) -> None:
        self.place = place
        self._uri = uri
        # Of its own, so that a broker that does not answer holds up no other.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="remuda-shovel")
        self._here = here
        self._name_of = name_of
        self._opened: Broker | None = None

    async def open(self) -> AsyncBroker:
        if self.place.is_here:
            return self._here
        opening = self._executor.submit(open_broker, self._uri)
        try:
            self._opened = await asyncio.shield(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        return self._opened.aio

    def name(self, kind: str, name: str) -> str:
        return self._name_of(kind, name) if self.place.is_here else name

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(RemudaError):
                await asyncio.get_running_loop().run_in_executor(self._executor, opened.close)
        self._executor.shutdown(wait=False)


def _close_opened(opening: Future[EmbeddedBroker]) -> None:
    """Nobody waits for the broker any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class BrokerBatch:
    """A delivery of the source."""

    def __init__(self, delivery: AsyncDelivery, shovel: str, broker: AsyncBroker) -> None:
        self._delivery = delivery
        self._shovel = shovel
        self._broker = broker
        self.messages = delivery.messages

    @property
    def marks(self) -> list[str]:
        return [f"{self._shovel} {offset}" for offset in self._delivery.offsets]

    @property
    def again(self) -> list[bool]:
        return self._delivery.redelivered

    async def stored(self, rows: Sequence[int]) -> None:
        await self._delivery.ack(rows)

    async def reject(self, rows: Sequence[int], reason: str) -> None:
        await self._delivery.dead(rows, reason="rejected", detail=reason)

    async def renew(self) -> None:
        await self._broker.renew(self._delivery)


class BrokerSource:
    """A queue of a broker of Remuda, or one of its exchanges, by a queue that is bound to it."""

    def __init__(self, shovel: Shovel, reached: Reached, declare: Callable[[Place, str], Any]) -> None:
        self._shovel = shovel
        self._reached = reached
        self._declare = declare
        self._subscription: AsyncSubscription | None = None
        self._broker: AsyncBroker | None = None

    @property
    def up(self) -> bool:
        return self._subscription is not None

    @property
    def _queue(self) -> str:
        return self._reached.name("queue", self._reached.place.queue or self._shovel.own_queue)

    async def open(self) -> int:
        place = self._reached.place
        broker = self._broker = await self._reached.open()
        if place.exchange is not None:
            await self._follow(broker, place.exchange, place.key or "")
        elif place.is_here:
            await self._declare(place, place.queue or "")
        else:
            await ensure_queue(broker, place)
        waiting = (await broker.queue(self._queue)).waiting
        self._subscription = await broker.subscribe(
            self._queue, consumer=f"shovel-{secrets.token_hex(6)}", batch=min(BATCH, self._shovel.prefetch),
            credit=self._shovel.prefetch,
        )  # fmt: skip
        return waiting

    async def _follow(self, broker: AsyncBroker, exchange: str, key: str) -> None:
        if exchange == TOPICS:
            await broker.create_queue(self._queue, patterns=[key or "#"])
            return
        full = self._reached.name("exchange", exchange)
        if full not in await broker.routers():
            raise NotFound(f"there is no exchange {exchange!r} at {self._reached.place.shown()}")
        await broker.create_queue(self._queue)
        await broker.bind(full, Binding(queue=self._queue, key=key))

    async def receive(self) -> BrokerBatch:
        subscription, broker = self._subscription, self._broker
        delivery = None if subscription is None else await subscription.receive()
        if delivery is None or broker is None:
            raise BrokerClosed("the source closed the connection")
        return BrokerBatch(delivery, self._shovel.name, broker)

    async def forget(self) -> None:
        if self._broker is not None and self._reached.place.exchange is not None:
            await self._broker.remove_queue(self._queue)

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(RemudaError):
                await subscription.close()
        await self._reached.close()


class BrokerTarget:
    """A queue or an exchange of a broker of Remuda. Where exchanges follow each other, what comes back is left out."""

    def __init__(self, reached: Reached, declare: Callable[[Place, str], Any], *, follows: bool) -> None:
        self._reached = reached
        self._declare = declare
        self._circles = follows and reached.place.exchange is not None
        self._broker: AsyncBroker | None = None

    @property
    def up(self) -> bool:
        return self._broker is not None

    async def open(self) -> None:
        place = self._reached.place
        broker = await self._reached.open()
        if place.exchange not in (None, TOPICS):
            full = self._reached.name("exchange", place.exchange or "")
            if full not in await broker.routers():
                raise NotFound(f"there is no exchange {place.exchange!r} at {place.shown()}")
        elif place.queue is not None and place.is_here:
            await self._declare(place, place.queue)
        elif place.queue is not None:
            await ensure_queue(broker, place)
        self._broker = broker

    async def deliver(self, messages: Messages, again: Sequence[bool], marks: Sequence[str]) -> Answer:
        broker = self._broker
        if broker is None:
            raise BrokerClosed("the target is not open")
        known = [
            row for row, before in enumerate(again)
            if await self._is_there(broker, messages, row, marks[row] if before else "")
        ]  # fmt: skip
        rows = [row for row in range(len(messages)) if row not in set(known)] if known else list(range(len(messages)))
        if not rows:
            return Answer(known, {}, {})
        own = _readdressed(messages.take(rows), [marks[row] for row in rows], self._reached.place)
        refusals = await self._publish(broker, own)
        later: dict[int, str] = {}
        never: dict[int, str] = {}
        for row, error in refusals.items():
            if isinstance(error, QueueFull | QueueNotAccepting):
                later[rows[row]] = str(error)
            elif isinstance(error, Duplicate):
                known.append(rows[row])
            else:
                never[rows[row]] = str(error)
        return Answer([*known, *(row for row in rows if row not in later and row not in never)], later, never)

    async def _is_there(self, broker: AsyncBroker, messages: Messages, row: int, mark: str) -> bool:
        """Whether the target has a message: it came before with this mark, or left from here and comes back."""
        own, shovelled = messages.id(row), self._circles and MARK in cell(messages.headers, row)
        if not own or not (mark or shovelled):
            return False
        try:
            found = (await broker.message(own)).message
        except NotFound:
            return False
        place = self._reached.place
        same = found.name, found.headers.get(EXCHANGE, "")
        returned = same == (cell(messages.name, row) if place.key is None else place.key, _exchange_of(place))
        return (shovelled and returned) or (mark != "" and found.headers.get(MARK) == mark)

    async def _publish(self, broker: AsyncBroker, messages: Messages) -> Mapping[int, Exception]:
        place = self._reached.place
        if place.queue is not None:
            queue = self._reached.name("queue", place.queue)
            return (await broker.publish(messages, queue=queue, raise_refusals=False)).refusals
        if place.exchange == TOPICS:
            return (await broker.publish(messages, unbound=UNROUTED, raise_refusals=False)).refusals
        exchange = self._reached.name("exchange", place.exchange or "")
        return (await broker.route(exchange, messages, raise_refusals=False)).refusals

    async def close(self) -> None:
        self._broker = None
        await self._reached.close()


async def ensure_queue(broker: AsyncBroker, place: Place) -> None:
    """Make a queue of another broker, unless it is there."""
    name = place.queue or ""
    try:
        await broker.queue(name)
    except NotFound:
        if place.predeclared:
            raise
        await broker.create_queue(name)


def _exchange_of(place: Place) -> str:
    """The exchange that messages carry with them."""
    return "" if place.exchange in (None, TOPICS) else place.exchange or ""


def _readdressed(messages: Messages, marks: Sequence[str], place: Place) -> Messages:
    """The messages as they are published at the target: as they are, but for where they go and where they came from."""
    exchange = _exchange_of(place)
    headers = []
    for row, mark in enumerate(marks):
        kept = {name: value for name, value in cell(messages.headers, row).items() if name not in (EXCHANGE, MARK)}
        if exchange:
            kept[EXCHANGE] = exchange
        if mark:
            kept[MARK] = mark
        headers.append(kept)
    key = place.queue if place.queue is not None else place.key
    return msgspec.structs.replace(
        messages, ids=[messages.id(row) for row in range(len(messages))] if messages.ids is not None else None,
        name=messages.name if key is None else key, headers=headers, topics=(), due=None,
    )  # fmt: skip
