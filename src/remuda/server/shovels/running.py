"""One shovel at work: takes what the source has, has the target confirm it, and only then answers the source."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from remuda.amqp.codec.methods import QueueDeclare
from remuda.amqp.codec.properties import with_headers
from remuda.model.errors import BrokerClosed, RemudaError
from remuda.model.messages import Messages, cell
from remuda.server.amqp.protocol.failures import NOT_FOUND, Failure
from remuda.server.shovels.brokers import BrokerSource, BrokerTarget, Reached
from remuda.server.shovels.definition import HERE, Place, Shovel
from remuda.server.shovels.ends import Answer, ShovelBatch, Source, Target
from remuda.server.shovels.rabbitmq import AmqpSource, AmqpTarget, Linked
from remuda.server.users import User

if TYPE_CHECKING:
    from remuda.server.amqp.amqp_server import AmqpServer

_log = logging.getLogger("remuda.shovels")
_AGAIN: Final = 1.0
"""Seconds after which what the target refused for now is offered again."""
_PARTING: Final = 5.0
T = TypeVar("T")
_EVERYWHERE: Final = User("shovels", everywhere=True)


class RunningShovel:
    """Runs until it is cancelled or has moved what it was to move. Whatever breaks is tried again."""

    def __init__(self, server: AmqpServer, shovel: Shovel) -> None:
        self.shovel = shovel
        self.moved = self.rejected = 0
        self.reason: str | None = None
        """Why it does not run, if it does not."""
        self.since = time.time()
        self._server = server
        self._source: Source | None = None
        self._target: Target | None = None
        self._turn = 0
        self._waits: str | None = None
        self.forgets = False
        """Whether its end is for good: then it removes what was made at the source."""
        self.task: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        """In RabbitMQ's words."""
        if self.reason is not None:
            return "terminated"
        up = self._source is not None and self._target is not None and self._source.up and self._target.up
        return "running" if up else "starting"

    @property
    def waits(self) -> str | None:
        """Why the target takes nothing at the moment, if so."""
        return self._waits

    async def run(self) -> None:
        name = f"shovel {self.shovel.name!r} of vhost {self.shovel.vhost!r}"
        while True:
            try:
                await self._move()
            except (RemudaError, OSError, TimeoutError) as error:
                self._became(str(error) or type(error).__name__)
                _log.warning("%s starts again in %g s: %s", name, self.shovel.reconnect_seconds, self.reason)
            except Exception as error:
                self._became(type(error).__name__)
                self._server.mistakes.report(name, "moving messages", error)
            else:
                _log.info("%s is done: %d messages were moved", name, self.moved)
                return
            self._turn += 1
            await asyncio.sleep(self.shovel.reconnect_seconds)

    async def _move(self) -> None:
        self._source, self._target = self._make_source(), self._make_target()
        try:
            await self._target.open()
            waiting = await self._source.open()
            if self.reason is not None:
                self._became(None)
            after = self.shovel.delete_after
            left = waiting if after == "queue-length" else after - self.moved if isinstance(after, int) else None
            while left is None or left > 0:
                batch = await self._source.receive()
                count = len(batch.messages)
                await self._pass_on(batch, count if left is None else min(left, count))
                left = None if left is None else left - count
        finally:
            source, target = self._source, self._target
            self._waits = None
            await asyncio.shield(self._close(source, target))

    async def _pass_on(self, batch: ShovelBatch, count: int) -> None:
        target = self._target
        assert target is not None
        waiting = list(range(count))
        messages, again, marks = self._marked(batch.messages), batch.again, batch.marks

        async def offer(rows: list[int]) -> Answer:
            answer = await target.deliver(
                messages.take(rows), [again[row] for row in rows], [marks[row] for row in rows]
            )
            stored = [rows[row] for row in answer.stored]
            if stored:
                await batch.stored(stored)
                self.moved += len(stored)
            for row, reason in answer.never.items():
                self.rejected += 1
                _log.warning("shovel %s: a message was refused for good: %s", self.shovel.name, reason)
                await batch.reject([rows[row]], reason)
            return answer

        while waiting:
            answer = await _completed(offer(waiting))
            waiting = [waiting[row] for row in sorted(answer.later)]
            self._waits = next(iter(answer.later.values()), None)
            if waiting:
                await asyncio.sleep(_AGAIN)
                await batch.renew()

    async def _close(self, source: Source, target: Target) -> None:
        if self.forgets:
            with contextlib.suppress(RemudaError, OSError, TimeoutError):
                await asyncio.wait_for(source.forget(), _PARTING)
        for end in (source, target):
            try:
                await end.close()
            except Exception as error:
                _log.debug("an end of shovel %s could not be closed: %s", self.shovel.name, error)

    def _marked(self, messages: Messages) -> Messages:
        """With the header that tells AMQP's clients of the shovel, if that is wanted."""
        if not self.shovel.forward_headers:
            return messages
        source, target = self.shovel.source, self.shovel.target
        told: dict[str, Any] = {
            "shovelled-by": self._server.name, "shovel-type": "dynamic", "shovel-name": self.shovel.name,
            "shovel-vhost": self.shovel.vhost, "src-uri": source.shown(), "dest-uri": target.shown(),
        }  # fmt: skip
        wires = [cell(messages.wire, row) for row in range(len(messages))]
        own = [None if raw is None else with_headers(raw, {"x-shovelled": [told]}) for raw in wires]
        return msgspec.structs.replace(messages, wire=own)

    def _became(self, reason: str | None) -> None:
        self.reason = reason
        self.since = time.time()

    # The ends

    def _make_source(self) -> Source:
        place = self.shovel.source
        if place.is_here or place.protocol == "remuda":
            return BrokerSource(self.shovel, self._reached(place), self._declare)
        return AmqpSource(self.shovel, self._linked(place))

    def _make_target(self) -> Target:
        place = self.shovel.target
        if place.is_here or place.protocol == "remuda":
            follows = self.shovel.source.exchange is not None
            return BrokerTarget(self._reached(place), self._declare, follows=follows)
        return AmqpTarget(self._linked(place))

    def _uri(self, place: Place) -> str:
        return place.uris[self._turn % len(place.uris)]

    def _linked(self, place: Place) -> Linked:
        return Linked(place, self._uri(place), f"shovel {self.shovel.name}")

    def _reached(self, place: Place) -> Reached:
        vhost = self._server.topology.vhosts.get(self.shovel.vhost)
        if vhost is None:
            raise BrokerClosed(f"there is no vhost {self.shovel.vhost!r}")
        names: dict[str, Callable[[str], str]] = {"queue": vhost.queue, "exchange": vhost.exchange}
        return Reached(
            place, self._uri(place), here=self._server.broker, name_of=lambda kind, name: names[kind](name)
        )  # fmt: skip

    async def _declare(self, place: Place, queue: str) -> None:
        """Make a queue of this server, unless it is there, however it was declared."""
        from remuda.server.amqp.local_session import LocalSession  # which needs the server that needs this

        vhost = self._server.topology.vhosts[self.shovel.vhost]
        session = LocalSession(self._server, _EVERYWHERE, vhost)
        try:
            await session.ask(QueueDeclare(0, queue, True))
        except Failure as failure:
            if failure.code != NOT_FOUND or place.predeclared:
                raise
            await session.ask(QueueDeclare(0, queue, False, True, arguments=place.arguments))


async def _completed(work: Coroutine[Any, Any, T]) -> T:
    """What the work results in. Who cancels it waits for a while until it is done: what the target has stored is
    answered at the source."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_PARTING)
        task.cancel()
        raise


def view(running: RunningShovel, node: str) -> dict[str, Any]:
    """A shovel's status, as the management API has it. Without logins."""
    shovel = running.shovel
    found: dict[str, Any] = {
        "node": node, "vhost": shovel.vhost, "name": shovel.name, "type": "dynamic", "state": running.state,
        "timestamp": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(running.since)), "messages_moved": running.moved,
        "messages_rejected": running.rejected,
    }  # fmt: skip
    for end, place in (("src", shovel.source), ("dest", shovel.target)):
        found[f"{end}_uri"] = HERE if place.is_here else place.shown()
        found[f"{end}_protocol"] = place.protocol
        for what, value in (("queue", place.queue), ("exchange", place.exchange), ("exchange_key", place.key)):
            if value is not None:
                found[f"{end}_{what}"] = value
    reason = running.reason or running.waits
    return {**found, "reason": reason} if reason else found
