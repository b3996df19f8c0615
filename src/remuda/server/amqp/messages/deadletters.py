"""Dead letters go to their queue's dead-letter exchange, with the `x-death` headers that RabbitMQ writes.

A message that dies in a queue with a dead-letter exchange moves to a helper queue, in the same step and as durably;
from there it is published to the exchange. So a dead letter is never lost, and at worst is published twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from remuda.amqp.codec.methods import BasicPublish
from remuda.amqp.codec.properties import decode_properties, with_headers, without_property
from remuda.amqp.codec.tables import Int64, Table, Timestamp
from remuda.amqp.errors import ProtocolError
from remuda.broker.delivery import AsyncDelivery
from remuda.model.errors import BrokerClosed, NotFound, QueueFull, QueueNotAccepting, Refused, RemudaError
from remuda.model.life import reason_of_arrival
from remuda.model.message import Message
from remuda.server.amqp.declarations.queues import QueueDeclaration
from remuda.server.amqp.messages.inbound import Inbound
from remuda.server.amqp.messages.outbound import exchange_of, properties_of
from remuda.server.amqp.protocol.failures import Failure
from remuda.server.amqp.protocol.request_reader import Publications
from remuda.server.amqp.protocol.vhosts import dead_letters_of

if TYPE_CHECKING:
    from remuda.server.amqp.amqp_server import AmqpServer

_log = logging.getLogger("remuda.amqp")
_REASONS: Final = {"expired": "expired", "evicted": "maxlen", "delivery_limit": "delivery_limit"}
_BATCH: Final = 100
_PAUSE: Final = 1.0
_TELLING: Final = 60.0


class DeadLetters:
    """Publishes what arrives in the helper queues to the dead-letter exchanges."""

    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self._inbound = Inbound()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, float] = {}
        """When it was last logged that a queue's dead letters were refused."""

    def follow(self, full: str) -> None:
        """Start to publish the dead letters of a queue, if it has somewhere to send them."""
        declaration = self._server.topology.merged(full)
        if declaration is None or declaration.dead_letter_exchange is None:
            return
        if full not in self._tasks or self._tasks[full].done():
            self._tasks[full] = asyncio.create_task(self._run(full))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=10)
        self._tasks.clear()

    def forget(self, full: str) -> None:
        self._told.pop(full, None)
        task = self._tasks.pop(full, None)
        if task is not None:
            task.cancel()

    async def _run(self, full: str) -> None:
        broker = self._server.broker
        name = dead_letters_of(full)
        while True:
            subscription = None
            try:
                if await self._server.topology.find(name) is None:
                    return
                subscription = await broker.subscribe(
                    name, consumer=f"amqp-dead-letters-{self._server.topology.server}", batch=_BATCH, credit=2 * _BATCH
                )
                while (delivery := await subscription.receive()) is not None:
                    await self._pass_on(full, delivery)
                return
            except BrokerClosed:
                return
            except RemudaError as error:
                _log.warning("dead letters of queue %s have to wait: %s", full, error)
                await asyncio.sleep(_PAUSE)
            except Exception as error:
                self._server.mistakes.report(f"queue {full}", "passing on its dead letters", error)
                await asyncio.sleep(_PAUSE)
            finally:
                if subscription is not None:
                    with contextlib.suppress(RemudaError):
                        await subscription.close()

    async def _pass_on(self, full: str, delivery: AsyncDelivery) -> None:
        declaration = await self._server.topology.in_force(full)
        refusals: dict[int, Refused] = {}
        if declaration is not None:
            reasons = [_reason(full, arrival) for arrival in delivery.arrivals]
            refusals = await self.send(full, declaration, list(delivery), reasons)
        if not refusals:
            await delivery.ack()
            return
        sent = [row for row in range(len(delivery)) if row not in refusals]
        if sent:
            await delivery.ack(sent)
        later = [row for row, error in refusals.items() if isinstance(error, QueueFull | QueueNotAccepting)]
        if later:
            self._tell(full, f"{refusals[later[0]]}; they wait until there is room")
            await asyncio.sleep(_PAUSE)  # before more is tried: there may be a million of them
            await delivery.release(later, front=True)
        for row, error in refusals.items():
            if row not in later:
                self._tell(full, f"{error}; it is kept in queue {dead_letters_of(full)}")
                await delivery.dead([row], reason="refused", detail=str(error))

    def _tell(self, full: str, why: str) -> None:
        """Log why dead letters are not where they should be, once a minute for each queue."""
        now = time.monotonic()
        if now - self._told.get(full, -_TELLING) >= _TELLING:
            self._told[full] = now
            _log.warning("a dead letter of queue %s was refused: %s", full, why)

    async def send(
        self, full: str, declaration: QueueDeclaration, messages: Sequence[Message], reasons: Sequence[str]
    ) -> dict[int, Refused]:
        """Publish messages that died in a queue to its dead-letter exchange, except those that go in a circle. Returns
        which of them a queue refused."""
        exchange = declaration.dead_letter_exchange
        if exchange is None:
            return {}
        vhost = self._server.topology.vhost_of(full)
        publications = []
        rows = []
        for row, (message, reason) in enumerate(zip(messages, reasons, strict=True)):
            made = _letter(vhost.short(full), exchange, declaration.dead_letter_key, message, reason)
            if made is not None:
                publications.append(made)
                rows.append(row)
        if not publications:
            return {}
        batch = self._inbound.batch(exchange, publications, self._server.broker.now())
        try:
            receipt = await self._server.broker.route(vhost.exchange(exchange), batch, raise_refusals=False)
        except (NotFound, Failure):  # a name that no exchange can have is one that does not exist
            _log.debug("dead letters of queue %s are dropped: there is no exchange %s", full, exchange)
            return {}
        return {rows[number]: error for number, error in receipt.refusals.items()}


def _letter(queue: str, exchange: str, key: str | None, message: Message, reason: str) -> Publications | None:
    """The message as it is published again; None if it went in a circle without being rejected."""
    raw = properties_of(message)
    try:
        properties = decode_properties(raw)
    except (ProtocolError, IndexError):
        return None
    headers: Table = properties.headers or {}
    deaths = [death for death in headers.get("x-death") or [] if isinstance(death, dict)]
    copies = [str(one) for one in headers.get("CC") or [] if isinstance(one, str)]
    if _goes_in_circle(queue, deaths, reason, exchange, key):
        return None
    origin = exchange_of(message.headers)
    deaths = _with_death(deaths, queue, reason, origin, [message.name, *copies], properties.expiration)
    entries: dict[str, Any] = {"x-death": deaths}
    if "x-first-death-queue" not in headers:
        entries |= {
            "x-first-death-exchange": origin, "x-first-death-queue": queue, "x-first-death-reason": reason,
        }  # fmt: skip
    gone = frozenset({"CC"}) if key is not None else frozenset()
    raw = with_headers(without_property(raw, "expiration"), entries, without=gone)
    return Publications(BasicPublish(0, exchange, message.name if key is None else key), raw, [message.body])


def _with_death(
    deaths: list[Table], queue: str, reason: str, exchange: str, keys: list[str], expiration: str | None
) -> list[Table]:
    """The deaths with this one first; another one in the same queue for the same reason only raises its count."""
    before = next((one for one in deaths if one.get("queue") == queue and one.get("reason") == reason), None)
    count = before.get("count", 0) if before is not None else 0
    death: Table = {
        "count": Int64((count if isinstance(count, int) else 0) + 1), "reason": reason, "queue": queue,
        "time": Timestamp(int(time.time())), "exchange": exchange, "routing-keys": keys,
    }  # fmt: skip
    if before is not None:
        death = {**before, "count": death["count"]}
    elif expiration is not None:
        death["original-expiration"] = expiration
    return [death, *(one for one in deaths if one is not before)]


def _goes_in_circle(queue: str, deaths: list[Table], reason: str, exchange: str, key: str | None) -> bool:
    """Whether a message would circulate for ever: it died here before or goes straight back, and nobody rejected it."""
    if reason == "rejected" or any(one.get("reason") == "rejected" for one in deaths):
        return False
    return any(one.get("queue") == queue for one in deaths) or (exchange == "" and key == queue)


def _reason(full: str, arrival: str | None) -> str:
    """What RabbitMQ calls the reason of a death in a queue."""
    return next((word for why, word in _REASONS.items() if arrival == reason_of_arrival(why, full)), "rejected")
