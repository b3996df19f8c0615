"""Queues, exchanges and bindings of all vhosts. The broker stores them, each declaration in a binding.

A queue is bound to the default exchange under its own name, and an exchange to itself; the arguments of these bindings
hold the declaration. So a declaration lasts as long as what it describes, and other servers on the broker find it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.broker.port import AsyncBroker
from remuda.model.errors import NotFound
from remuda.model.operations.results import QueueInfo
from remuda.model.queues.options import QueueOptions
from remuda.model.queues.routing import ALTERNATE, DECLARED, HASHED, ROUTERS, Binding, ExchangeKind
from remuda.server.amqp.declarations.exchanges import HASH_HEADER, PREDECLARED, ExchangeDeclaration, type_of
from remuda.server.amqp.declarations.policies import (
    Policy,
    alternate_of,
    policy_of_exchange,
    policy_of_queue,
    with_policy,
)
from remuda.server.amqp.declarations.queues import QueueDeclaration, options_of
from remuda.server.amqp.declarations.upgrade import upgrade_names
from remuda.server.amqp.protocol.vhosts import DEFAULT_EXCHANGE, ROOT, VHost, dead_letters_of, split_name, vhost_name

_log = logging.getLogger("remuda.amqp")
POLICIES: Final = "x-remuda-policies"
_OWN: Final = {DECLARED, POLICIES}
"""Arguments of bindings that describe what they belong to."""
_FOLLOWING: Final = (
    "message_timeout", "message_limit", "byte_limit", "limit_exceeded", "dead_letter_queue", "acknowledge_timeout",
)  # fmt: skip
"""Options that a policy can change."""

_encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_queue_decoder = msgspec.msgpack.Decoder(QueueDeclaration)
_policies_decoder = msgspec.msgpack.Decoder(list[Policy])
_exchange_decoder = msgspec.msgpack.Decoder(ExchangeDeclaration)

_Routers = Mapping[str, tuple[ExchangeKind, tuple[Binding, ...]]]


class Topology:
    """What clients declared. Exchanges and declarations are cached; whether a queue exists is asked of the broker."""

    def __init__(self, broker: AsyncBroker, vhosts: Iterable[str], consumer_seconds: float) -> None:
        self.broker = broker
        self.server = _this_server()
        self.vhosts = {name: VHost(name) for name in {ROOT, *vhosts}}
        self.exchanges: dict[str, ExchangeDeclaration] = {}
        self.policies: dict[str, dict[str, Policy]] = {}
        """By vhost and name."""
        self.queues: dict[str, QueueDeclaration] = {}
        """By the broker's name; without queues of a bus that no client declared."""
        self._merged: dict[str, tuple[QueueDeclaration, QueueDeclaration]] = {}
        """By queue, its declaration, and the same with what its policy adds."""
        self._fading: set[str] = set()
        """Auto-delete exchanges that have had a binding: they are deleted with the last one."""
        self._undeclared: set[str] = set()
        """Queues that exist and were not declared over AMQP."""
        self._consumer_seconds = consumer_seconds

    async def load(self) -> None:
        """Read what was declared before, and create the exchanges that every vhost has."""
        await upgrade_names(self.broker)
        await self.refresh()
        for full in self.exchanges:
            if split_name(full)[1] == DEFAULT_EXCHANGE:
                self.vhosts.setdefault(vhost_name(full), VHost(vhost_name(full)))
        for vhost in list(self.vhosts.values()):
            await self._predeclare(vhost)
        await self._remove_orphans()

    # Vhosts

    def vhost_of(self, full: str) -> VHost:
        """The vhost that a name of the broker belongs to."""
        name = vhost_name(full)
        return self.vhosts.get(name) or VHost(name)

    async def add_vhost(self, name: str) -> None:
        """Create a vhost, unless there is one. It lasts until it is removed."""
        vhost = self.vhosts.get(name) or VHost(name)
        await self._predeclare(vhost)
        self.vhosts[name] = vhost

    async def remove_vhost(self, name: str) -> None:
        """Remove a vhost with all its queues and exchanges; the default exchange goes last."""
        vhost = self.vhosts.pop(name)
        for info in await self.broker.queues():
            if vhost.holds(info.name):
                self.queues.pop(info.name, None)
                await self._remove_queue(info.name)
        default = vhost.exchange("")
        await self.refresh()
        for full in sorted((one for one in self.exchanges if vhost.holds(one)), key=lambda one: one == default):
            await self.delete_exchange(full)

    async def refresh(self) -> None:
        """Read what other servers may have declared meanwhile."""
        exchanges: dict[str, ExchangeDeclaration] = {}
        policies: dict[str, dict[str, Policy]] = {}
        queues: dict[str, QueueDeclaration] = {}
        for name, (kind, bindings) in (await self.broker.routers()).items():
            declaration = ExchangeDeclaration(type_of(kind), durable=True)
            for binding in bindings:
                if POLICIES in binding.arguments:
                    policies[vhost_name(name)] = _read_policies(name, binding)
                kept = binding.arguments.get(DECLARED)
                if not isinstance(kept, bytes):
                    continue
                try:
                    if binding.exchange == name:
                        declaration = _exchange_decoder.decode(kept)
                    elif binding.queue is not None and split_name(name)[1] == DEFAULT_EXCHANGE:
                        queues[binding.queue] = _queue_decoder.decode(kept)
                except msgspec.MsgspecError as error:
                    # Anybody who may bind can write anything there.
                    _log.warning("a binding of exchange %s has an unreadable declaration: %s", name, error)
            exchanges[name] = declaration
            if declaration.auto_delete and any(binding.exchange != name for binding in bindings):
                self._fading.add(name)
        self.exchanges, self.queues, self.policies = exchanges, queues, policies
        self._merged.clear()

    # Exchanges

    async def exchange(self, full: str) -> ExchangeDeclaration | None:
        if full in self._fading:
            routers = await self.broker.routers()
            if not _is_bound(full, routers):
                await self.delete_exchange(full, routers)  # the queues that were bound to it are gone
        elif full not in self.exchanges and full in await self.broker.routers():
            await self.refresh()  # another server declared it
        return self.exchanges.get(full)

    async def create_exchange(self, vhost: VHost, full: str, declaration: ExchangeDeclaration) -> None:
        arguments: dict[str, Any] = {DECLARED: _encode(declaration)}
        alternate = alternate_of(declaration, self.policy_of_exchange(full))
        if alternate is not None:
            arguments[ALTERNATE] = vhost.exchange(alternate)
        if declaration.kind is ExchangeKind.CONSISTENT_HASH and HASH_HEADER in declaration.arguments:
            arguments[HASHED] = declaration.arguments[HASH_HEADER]
        # A router consults every binding it has, so it gets none with a declaration: all routers are declared alike.
        own = [] if declaration.kind in ROUTERS else [Binding(exchange=full, arguments=arguments)]
        await self.broker.create_router(full, declaration.kind, own)
        self.exchanges[full] = declaration

    async def delete_exchange(self, full: str, routers: _Routers | None = None) -> None:
        self.exchanges.pop(full, None)
        self._fading.discard(full)
        routers = await self.broker.routers() if routers is None else routers
        with contextlib.suppress(NotFound):
            await self.broker.remove_router(full)
        for source, (_, bindings) in routers.items():
            for binding in bindings:
                if source != full and binding.exchange == full:
                    with contextlib.suppress(NotFound):
                        await self.broker.unbind(source, binding)

    async def is_used(self, full: str) -> bool:
        return _is_bound(full, await self.broker.routers())

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
        """Delete auto-delete exchanges that have lost their last binding, and then those that only led to them."""
        while self._fading:
            routers = await self.broker.routers()
            unused = [full for full in self._fading if not _is_bound(full, routers)]
            if not unused:
                return
            for full in unused:
                await self.delete_exchange(full, routers)

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

    async def in_force(self, full: str) -> QueueDeclaration | None:
        """How a queue was declared, with what its policy adds."""
        await self.declaration(full)
        return self.merged(full)

    def merged(self, full: str) -> QueueDeclaration | None:
        """The same of what is known already."""
        declaration = self.queues.get(full)
        if declaration is None:
            return None
        known = self._merged.get(full)
        if known is None or known[0] is not declaration:
            known = declaration, with_policy(declaration, self.policy_of_queue(full, declaration))
            self._merged[full] = known
        return known[1]

    def policy_of_queue(self, full: str, declaration: QueueDeclaration) -> Policy | None:
        policies = self.policies.get(vhost_name(full))
        return policy_of_queue(policies.values(), split_name(full)[1], declaration) if policies else None

    def policy_of_exchange(self, full: str) -> Policy | None:
        policies = self.policies.get(vhost_name(full))
        return policy_of_exchange(policies.values(), split_name(full)[1]) if policies else None

    async def _prepare_dead_letters(self, full: str, declaration: QueueDeclaration, options: QueueOptions) -> None:
        if declaration.dead_letter_exchange is not None:
            await self.broker.create_queue(
                dead_letters_of(full), persistence=options.persistence, acknowledge_timeout="5m", put_back="priority"
            )

    async def set_policies(self, vhost: VHost, policies: dict[str, Policy]) -> list[str]:
        """Replace the policies of a vhost, and have its queues and exchanges follow; returns the queues."""
        default = vhost.exchange("")
        before = [one for one in (await self.broker.routers())[default][1] if POLICIES in one.arguments]
        if policies:
            kept = _encode([*policies.values()])
            await self.broker.bind(default, Binding(exchange=default, arguments={POLICIES: kept}))
            before = [one for one in before if one.arguments[POLICIES] != kept]
        for binding in before:
            await self.broker.unbind(default, binding)
        await self.refresh()
        queues = [full for full in self.queues if vhost.holds(full)]
        for full in queues:
            await self._follow_policy(vhost, full)
        for full, exchange in list(self.exchanges.items()):
            if vhost.holds(full) and exchange.kind not in ROUTERS:
                await self._follow_alternate(vhost, full, exchange)
        return queues

    async def _follow_policy(self, vhost: VHost, full: str) -> None:
        info, declaration = await self.find(full), self.merged(full)
        if info is None or declaration is None:
            return
        options = options_of(vhost, full, declaration, self._consumer_seconds)
        await self._prepare_dead_letters(full, declaration, options)
        changes: dict[str, Any] = {}
        for name in _FOLLOWING:
            value = getattr(options, name)
            if value != getattr(info.options, name):
                changes[name] = timedelta(microseconds=value) if name.endswith("_timeout") else value
        if changes:
            await self.broker.configure_queue(full, **changes)

    async def _follow_alternate(self, vhost: VHost, full: str, declaration: ExchangeDeclaration) -> None:
        alternate = alternate_of(declaration, self.policy_of_exchange(full))
        wanted = None if alternate is None else vhost.exchange(alternate)
        for binding in (await self.broker.routers())[full][1]:
            if binding.exchange == full and DECLARED in binding.arguments:
                arguments = {name: value for name, value in binding.arguments.items() if name != ALTERNATE}
                if wanted is not None:
                    arguments[ALTERNATE] = wanted
                if arguments != binding.arguments:
                    await self.broker.unbind(full, binding)
                    await self.broker.bind(full, msgspec.structs.replace(binding, arguments=arguments))

    async def create_queue(self, vhost: VHost, full: str, declaration: QueueDeclaration) -> None:
        in_force = with_policy(declaration, self.policy_of_queue(full, declaration))
        options = options_of(vhost, full, in_force, self._consumer_seconds)
        default = vhost.exchange("")
        binding = Binding(queue=full, key=vhost.short(full), arguments={DECLARED: _encode(declaration)})
        # They begin in this order, and share one sync.
        done = await asyncio.gather(
            self._prepare_dead_letters(full, in_force, options), self.broker.create_queue(full, options),
            self.broker.bind(default, binding), return_exceptions=True,
        )  # fmt: skip
        for error in done:
            if isinstance(error, BaseException):
                with contextlib.suppress(NotFound):
                    await self.broker.unbind(default, binding)
                raise error
        self.queues[full] = declaration

    async def adopt(self, vhost: VHost, full: str) -> bool:
        """Make a bus's own queue reachable through the default exchange; False if there is none."""
        if await self.find(full) is None:
            return False
        await self.broker.bind(vhost.exchange(""), Binding(queue=full, key=vhost.short(full)))
        return True

    async def delete_queue(self, full: str) -> None:
        self.queues.pop(full, None)
        self._merged.pop(full, None)
        for name in (full, dead_letters_of(full)):
            await self._remove_queue(name)
        await self.drop_unused()

    async def _remove_queue(self, full: str) -> None:
        with contextlib.suppress(NotFound):
            await self.broker.remove_queue(full)

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
            if not exchange.durable and split_name(full)[1] != DEFAULT_EXCHANGE and not await self.is_used(full):
                await self.delete_exchange(full)


def _is_bound(full: str, routers: _Routers) -> bool:
    """Whether an exchange has bindings, beside the one that describes it."""
    return any(binding.exchange != full for binding in routers.get(full, (None, ()))[1])


def _read_policies(exchange: str, binding: Binding) -> dict[str, Policy]:
    try:
        return {one.name: one for one in _policies_decoder.decode(binding.arguments[POLICIES])}
    except (msgspec.MsgspecError, TypeError) as error:
        _log.warning("a binding of exchange %s has unreadable policies: %s", exchange, error)
        return {}


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
