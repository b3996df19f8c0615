"""From a URL to a broker: a path or `file://` is a directory, `memory://` leaves nothing, `amqp://` is RabbitMQ."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from remuda.broker.embedded.clock import Clock
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.options import BrokerOptions
from remuda.broker.threads import EmbeddedBroker
from remuda.log.directory import DirectoryDisk
from remuda.log.disk import MemoryDisk
from remuda.model.errors import InvalidOption
from remuda.model.urls import AMQP, AMQPS, MEMORY, parse_url

if TYPE_CHECKING:
    from remuda.broker.port import AsyncBroker, Broker


def open_broker(
    url: str | os.PathLike[str],
    *,
    extensions: Extensions | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> Broker:
    """Open the broker at `url` for use from threads. Options are those of `BrokerOptions`."""
    if _is_rabbitmq(url):
        return _rabbit(url, extensions, clock, options)
    return EmbeddedBroker(_runtime(url, BrokerOptions.parse(**options), extensions, clock))


async def open_async_broker(
    url: str | os.PathLike[str],
    *,
    extensions: Extensions | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncBroker:
    """Open the broker at `url` for use from coroutines."""
    if _is_rabbitmq(url):
        import asyncio

        return (await asyncio.to_thread(_rabbit, url, extensions, clock, options)).aio
    from remuda.broker.coroutines import AsyncEmbeddedBroker

    return AsyncEmbeddedBroker(_runtime(url, BrokerOptions.parse(**options), extensions, clock))


def _is_rabbitmq(url: str | os.PathLike[str]) -> bool:
    return parse_url(url).scheme in (AMQP, AMQPS)


def _rabbit(
    url: str | os.PathLike[str], extensions: Extensions | None, clock: Clock | None, options: dict[str, Any]
) -> Broker:
    from remuda.broker.rabbitmq.opening import open_rabbit_broker

    if extensions is not None:
        raise InvalidOption("extensions are parts of the embedded broker; RabbitMQ has its own")
    return open_rabbit_broker(os.fspath(url), clock=clock, **options)


def _runtime(
    url: str | os.PathLike[str], options: BrokerOptions, extensions: Extensions | None, clock: Clock | None
) -> Runtime:
    place = parse_url(url)
    if place.scheme == MEMORY:
        return Runtime(MemoryDisk(), options, extensions, clock, volatile=True)
    if place.is_directory:
        return Runtime(DirectoryDisk(place.path), options, extensions, clock)
    raise InvalidOption(f"no broker speaks {place.scheme}://; give a directory, file:///path or memory://")
