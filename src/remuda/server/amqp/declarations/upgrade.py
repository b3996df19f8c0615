"""Directories in which names of a vhost began with its name and a slash: they get today's names, once.

What was a vhost then shows by its default exchange, `shop/amq.default`. It goes last, so that a start that was
interrupted is finished by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from remuda.broker.port import AsyncBroker
from remuda.broker.shared.wire.permissions import OF_VHOSTS
from remuda.model.errors import NotFound
from remuda.model.queues.routing import ALTERNATE, Binding, ExchangeKind
from remuda.server.amqp.protocol.vhosts import DEAD_LETTERS, DEFAULT_EXCHANGE, VHost, dead_letters_of, prefix_of

_log = logging.getLogger("remuda.amqp")
_END: Final = f"/{DEFAULT_EXCHANGE}"

_Routers = Mapping[str, tuple[ExchangeKind, tuple[Binding, ...]]]


async def upgrade_names(broker: AsyncBroker) -> None:
    """Give queues and exchanges of vhosts the names that they have today."""
    routers = await broker.routers()
    for name, (kind, bindings) in routers.items():
        declared = any(binding.exchange == name for binding in bindings)  # by a client, as an ordinary exchange
        if name.endswith(_END) and not name.startswith(OF_VHOSTS) and kind is ExchangeKind.DIRECT and not declared:
            await _Upgrade(broker, routers, VHost(name.removesuffix(_END))).run()


class _Upgrade:
    """One vhost's queues and exchanges get their new names."""

    def __init__(self, broker: AsyncBroker, routers: _Routers, vhost: VHost) -> None:
        self._broker = broker
        self._routers = routers
        self._vhost = vhost
        self._before = f"{vhost.name}/"
        self._default = vhost.name + _END

    async def run(self) -> None:
        _, bindings = self._routers[self._default]
        queues = [one.queue for one in bindings if one.queue is not None and one.queue.startswith(self._before)]
        for full in queues:
            await self._copy_queue(full)
        exchanges = [name for name in self._routers if name.startswith(self._before)]
        for name in exchanges:
            kind, bindings = self._routers[name]
            await self._broker.create_router(self._renamed(name), kind, [self._rebound(one) for one in bindings])
        for full in queues:
            await self._end_queue(full)
        for name in sorted(exchanges, key=lambda one: one == self._default):
            await self._broker.remove_router(name)
        _log.warning(
            "vhost %r: its %d queues and %d exchanges now begin with %r in the broker, no longer with %r",
            self._vhost.name, len(queues), len(exchanges), prefix_of(self._vhost.name), self._before,
        )  # fmt: skip

    def _renamed(self, full: str) -> str:
        if full.startswith(DEAD_LETTERS + self._before):
            return dead_letters_of(self._renamed(full.removeprefix(DEAD_LETTERS)))
        return self._vhost.prefix + full.removeprefix(self._before) if full.startswith(self._before) else full

    def _rebound(self, binding: Binding) -> Binding:
        arguments = dict(binding.arguments)
        if ALTERNATE in arguments:
            arguments[ALTERNATE] = self._renamed(str(arguments[ALTERNATE]))
        return msgspec.structs.replace(
            binding, arguments=arguments,
            queue=None if binding.queue is None else self._renamed(binding.queue),
            exchange=None if binding.exchange is None else self._renamed(binding.exchange),
        )  # fmt: skip

    async def _copy_queue(self, full: str) -> None:
        for name in (DEAD_LETTERS + full, full):
            try:
                options = (await self._broker.queue(name)).options
            except NotFound:
                continue
            renamed = {
                option: self._renamed(target)
                for option in ("dead_letter_queue", "expired_queue")
                if (target := getattr(options, option)) is not None
            }
            await self._broker.create_queue(self._renamed(name), msgspec.structs.replace(options, **renamed))

    async def _end_queue(self, full: str) -> None:
        for name in (full, DEAD_LETTERS + full):
            try:
                await self._broker.move(name, self._renamed(name))
                left = await self._broker.queue(name)
            except NotFound:
                continue
            if left.size or left.dead or left.invalid or left.not_interested:
                # A dead message that moved would wait to be delivered again.
                _log.warning("queue %r keeps what is not waiting in it; see `remuda queues`", name)
            else:
                await self._broker.remove_queue(name)
