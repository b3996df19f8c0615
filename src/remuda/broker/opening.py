"""From a URL to a broker: a path or `file://` is a directory, `memory://` leaves nothing behind."""

from __future__ import annotations

import os
from typing import Any

from remuda.broker.aio import AsyncEmbeddedBroker
from remuda.broker.clock import Clock
from remuda.broker.embedded import EmbeddedBroker
from remuda.broker.extensions import Extensions
from remuda.broker.host import Host
from remuda.broker.options import BrokerOptions
from remuda.log.directory import DirectoryDisk
from remuda.log.disk import MemoryDisk
from remuda.model.errors import InvalidOption
from remuda.model.urls import MEMORY, parse_url


def open_broker(
    url: str | os.PathLike[str],
    *,
    extensions: Extensions | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> EmbeddedBroker:
    """Open the broker at `url` for use from threads. Options are those of `BrokerOptions`."""
    return EmbeddedBroker(_host(url, BrokerOptions.parse(**options), extensions, clock))


async def open_async_broker(
    url: str | os.PathLike[str],
    *,
    extensions: Extensions | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncEmbeddedBroker:
    """Open the broker at `url` for use from coroutines."""
    return AsyncEmbeddedBroker(_host(url, BrokerOptions.parse(**options), extensions, clock))


def _host(
    url: str | os.PathLike[str], options: BrokerOptions, extensions: Extensions | None, clock: Clock | None
) -> Host:
    place = parse_url(url)
    if place.scheme == MEMORY:
        return Host(MemoryDisk(), options, extensions, clock, volatile=True)
    if place.is_directory:
        return Host(DirectoryDisk(place.path), options, extensions, clock)
    raise InvalidOption(f"no broker speaks {place.scheme}://; give a directory, file:///path or memory://")
