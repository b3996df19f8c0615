"""From a URL to a broker: a path or `file://` is a directory, `memory://` leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remuda.broker.backend import Backend
from remuda.broker.embedded.clock import Clock
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.options import BrokerOptions
from remuda.broker.shared.filesystems import check_local
from remuda.broker.threads import EmbeddedBroker
from remuda.log.directory import DirectoryDisk
from remuda.log.disk import MemoryDisk
from remuda.model.errors import InvalidOption, Unsupported
from remuda.model.urls import MEMORY, REMUDA, Url, parse_url

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
) -> Backend:
    place = parse_url(url)
    if place.scheme == MEMORY:
        for name in ("lake", "collect_after_archive"):
            if getattr(options, name):
                raise InvalidOption(f"{name} needs a directory: what is in memory is never sealed, and leaves no files")
        return Runtime(MemoryDisk(), options, extensions, clock, volatile=True)
    if place.is_directory and options.shared:
        from remuda.broker.shared.directory import SharedDirectory

        return SharedDirectory(place.path, options, extensions, clock)
    if place.is_directory:
        check_local(Path(place.path), force=options.force_network)
        return Runtime(DirectoryDisk(place.path, group=options.group), options, extensions, clock)
    if place.scheme == REMUDA:
        return _remote(place, options, extensions)
    raise InvalidOption(
        f"no broker speaks {place.scheme}://; give a directory, file:///path, memory:// or remuda://host:port"
    )


def _remote(place: Url, options: BrokerOptions, extensions: Extensions | None) -> Backend:
    from remuda.broker.shared.remote import RemoteServer

    if extensions is not None and extensions != Extensions():
        raise Unsupported(f"the broker's parts run at {place}: extensions cannot be given here", "extensions")
    return RemoteServer(place)
