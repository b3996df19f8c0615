"""Queues, exchanges and bindings of all vhosts. The broker stores them, each declaration in a binding.

A queue is bound to the default exchange under its own name, and an exchange to itself; the arguments of these bindings
hold the declaration. So a declaration lasts as long as what it describes, and other servers on the broker find it.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.broker.port import AsyncBroker
from remuda.model.errors import NotFound
from remuda.model.results import QueueInfo
from remuda.model.routing import ALTERNATE, ROUTERS, Binding, ExchangeKind
from remuda.server.amqp.exchanges import PREDECLARED, ExchangeDeclaration, type_of
from remuda.server.amqp.names import DEAD_LETTERS, DEFAULT_EXCHANGE, VHost
from remuda.server.amqp.queues import QueueDeclaration, options_of

_log = logging.getLogger("remuda.amqp")
DECLARED: Final = "x-remuda-declared"

_encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_queue_decoder = msgspec.msgpack.Decoder(QueueDeclaration)
_exchange_decoder = msgspec.msgpack.Decoder(ExchangeDeclaration)


class Topology:
    """What clients declared. Exchanges and declarations are cached; whether a queue exists is asked of the broker."""

    def __init__(self, broker: AsyncBroker, vhosts: Iterable[str], consumer_seconds: float) -> None:
        self.broker = broker
        self.server = _this_server()
        names = frozenset(vhosts) | {"/"}
        self.vhosts = {name: VHost(name, names - {"/"} if name == "/" else frozenset()) for name in names}
        self.exchanges: dict[str, ExchangeDeclaration] = {}
        self.queues: dict[str, QueueDeclaration] = {}
        """By the broker's name; without queues of a bus that no client declared."""
        self._fading: set[str] = set()
        """Auto-delete exchanges that have had a binding: they are deleted with the last one."""
        self._undeclared: set[str] = set()
        """Queues that exist and were not declared over AMQP."""
        self._consumer_seconds = consumer_seconds

    async def load(self) -> None:
        """Read what was declared before, and create the exchanges that every vhost has."""
        await self.refresh()
        for vhost in self.vhosts.values():
            await self._predeclare(vhost)
        await self._remove_orphans()

    async def refresh(self) -> None:
        """Read what other servers may have declared meanwhile."""
        exchanges: dict[str, ExchangeDeclaration] = {}
        queues: dict[str, QueueDeclaration] = {}
        for name, (kind, bindings) in (await self.broker.routers()).items():
            declaration = ExchangeDeclaration(type_of(kind), durable=True)
            for binding in bindings:
                kept = binding.arguments.get(DECLARED)
                if not isinstance(kept, bytes):
                    continue
                try:
                    if binding.exchange == name:
                        declaration = _exchange_decoder.decode(kept)
                    elif binding.queue is not None and name.rpartition("/")[2] == DEFAULT_EXCHANGE:
                        queues[binding.queue] = _queue_decoder.decode(kept)
                except msgspec.MsgspecError as error:
                    # Anybody who may bind can write anything there.
                    _log.warning("a binding of exchange %s has an unreadable declaration: %s", name, error)
            exchanges[name] = declaration
            if declaration.auto_delete and any(binding.exchange != name for binding in bindings):
                self._fading.add(name)
        self.exchanges, self.queues = exchanges, queues

    # Exchanges

    async def exchange(self, full: str) -> ExchangeDeclaration | None:
        if full not in self.exchanges:
            await self.refresh()
        elif full in self._fading and not await self.is_used(full):
            await self.delete_exchange(full)  # the queues that were bound to it are gone
        return self.exchanges.get(full)

    async def create_exchange(self, vhost: VHost, full: str, declaration: ExchangeDeclaration) -> None:
        arguments: dict[str, Any] = {DECLARED: _encode(declaration)}
        if declaration.alternate is not None:
            arguments[ALTERNATE] = vhost.exchange(declaration.alternate)
        # A router consults every binding it has, so it gets none with a declaration: all routers are declared alike.
        own = [] if declaration.kind in ROUTERS else [Binding(exchange=full, arguments=arguments)]
        await self.broker.create_router(full, declaration.kind, own)
        self.exchanges[full] = declaration

    async def delete_exchange(self, full: str) -> None:
        self.exchanges.pop(full, None)
        self._fading.discard(full)
        routers = await self.broker.routers()
        if full in routers:
            await self.broker.remove_router(full)
        for source, (_, bindings) in routers.items():
            for binding in bindings:
                if source != full and binding.exchange == full:
                    await self.unbind(source, binding)

    async def bindings(self, full: str) -> list[Binding]:
        """An exchange's bindings, without the one that describes it."""
        _, bindings = (await self.broker.routers()).get(full, (None, ()))
        return [binding for binding in bindings if DECLARED not in binding.arguments or binding.queue is not None]

    async def is_used(self, full: str) -> bool:
        return any(binding.exchange != full for binding in await self.bindings(full))

    async def bind(self, full: str, binding: Binding) -> None:
        await self.broker.bind(full, binding)
        if self.exchanges[full].auto_delete:
            self._fading.add(full)

    async def unbind(self, full: str, binding: Binding) -> None:
        try:
            await self.broker.unbind(full, binding)
        except NotFound:
            return
        await self.drop_unused()

    async def drop_unused(self) -> None:
        """Delete auto-delete exchanges that have lost their last binding."""
        for full in list(self._fading):
            if not await self.is_used(full):
                await self.delete_exchange(full)

    # Queues

    async def find(self, full: str) -> QueueInfo | None:
        try:
            return await self.broker.queue(full)
        except NotFound:
            self.queues.pop(full, None)
            self._undeclared.discard(full)
            return None

    async def declaration(self, full: str) -> QueueDeclaration | None:
        """How a queue was declared; None for one that was not declared over AMQP."""
        if full not in self.queues and full not in self._undeclared:
            await self.refresh()
            if full not in self.queues:
                self._undeclared.add(full)
        return self.queues.get(full)

    async def create_queue(self, vhost: VHost, full: str, declaration: QueueDeclaration) -> None:
        options = options_of(vhost, full, declaration, self._consumer_seconds)
        if declaration.dead_letter_exchange is not None:
            await self.broker.create_queue(
                DEAD_LETTERS + full, persistence=options.persistence, acknowledge_timeout="5m", put_back="priority"
            )
        await self.broker.create_queue(full, options)
        await self.broker.bind(
            vhost.exchange(""),
            Binding(queue=full, key=vhost.short(full), arguments={DECLARED: _encode(declaration)}),
        )
        self.queues[full] = declaration

    async def adopt(self, vhost: VHost, full: str) -> bool:
        """Make a bus's own queue reachable through the default exchange; False if there is none."""
        if await self.find(full) is None:
            return False
        await self.broker.bind(vhost.exchange(""), Binding(queue=full, key=vhost.short(full)))
        return True

    async def delete_queue(self, full: str) -> None:
        declaration = self.queues.pop(full, None)
        for name in (full, DEAD_LETTERS + full) if declaration and declaration.dead_letter_exchange else (full,):
            try:
                await self.broker.remove_queue(name)
            except NotFound:
                continue
        await self.drop_unused()

    # At the start

    async def _predeclare(self, vhost: VHost) -> None:
        if vhost.exchange("") not in self.exchanges:
            await self.broker.create_router(vhost.exchange(""), ExchangeKind.DIRECT)
            self.exchanges[vhost.exchange("")] = ExchangeDeclaration("direct", durable=True)
        for name, kind in PREDECLARED.items():
            full = vhost.exchange(name)
            if full not in self.exchanges:
                internal = name == "amq.rabbitmq.trace"
                await self.create_exchange(vhost, full, ExchangeDeclaration(kind, durable=True, internal=internal))

    async def _remove_orphans(self) -> None:
        """Delete exclusive and non-durable queues whose connection or server is gone, and exchanges like them."""
        for full, declaration in list(self.queues.items()):
            info = await self.find(full)
            if info is None or (declaration.durable and not declaration.exclusive):
                continue
            owner = declaration.owner
            if owner is not None and not _is_running(owner, self.server) and not info.consumers:
                await self.delete_queue(full)
        for full, exchange in list(self.exchanges.items()):
            if not exchange.durable and not full.endswith(DEFAULT_EXCHANGE) and not await self.is_used(full):
                await self.delete_exchange(full)


def owner_of(server: str, connection: int) -> str:
    """A name for a connection of one server that other servers understand."""
    return f"{server}#{connection}"


def _this_server() -> str:
    return f"{os.getpid()}.{_started(os.getpid())}.{secrets.token_hex(4)}"


def _is_running(owner: str, this: str) -> bool:
    """Whether the server that an owner belongs to still runs on this machine."""
    server = owner.partition("#")[0]
    if server.partition(".")[0] == str(os.getpid()):
        return server == this
    try:
        pid, started, _ = server.split(".", 2)
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False  # or the owner was forged
    except PermissionError:
        pass
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process was started, where the system tells: process ids are reused."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"
