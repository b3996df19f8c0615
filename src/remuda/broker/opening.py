"""From a URL to a broker: a path or `file://` is a directory, `memory://` leaves nothing behind."""

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
from remuda.model.urls import MEMORY, parse_url

if TYPE_CHECKING:
    from remuda.broker.coroutines import AsyncEmbeddedBroker


def open_broker(
    url: str | os.PathLike[str],
    *,
    extensions: Extensions | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> EmbeddedBroker:
    """Open the broker at `url` for use from threads. Options are those of `BrokerOptions`."""
    return EmbeddedBroker(_runtime(url, BrokerOptions.parse(**options), extensions, clock))


async def open_async_broker(
    url: str | os.PathLike[str],
    *,
    extensions: Extensions | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncEmbeddedBroker:
    """Open the broker at `url` for use from coroutines."""
    from remuda.broker.coroutines import AsyncEmbeddedBroker

    return AsyncEmbeddedBroker(_runtime(url, BrokerOptions.parse(**options), extensions, clock))


def _runtime(
    url: str | os.PathLike[str], options: BrokerOptions, extensions: Extensions | None, clock: Clock | None
) -> Runtime:
    place = parse_url(url)
    if place.scheme == MEMORY:
        for name in ("lake", "collect_after_archive"):
            if getattr(options, name):
                raise InvalidOption(f"{name} needs a directory: what is in memory is never sealed, and leaves no files")
        return Runtime(MemoryDisk(), options, extensions, clock, volatile=True)
    if place.is_directory:
        return Runtime(DirectoryDisk(place.path), options, extensions, clock)
    raise InvalidOption(f"no broker speaks {place.scheme}://; give a directory, file:///path or memory://")
