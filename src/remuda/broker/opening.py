"""Opens the broker at a URL: a path or `file://` is a directory, `memory://` leaves nothing, `amqp://` is RabbitMQ."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from remuda.broker.allocation import keep_freed_memory
from remuda.broker.backend import Backend
from remuda.broker.embedded.clock import Clock
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.options import BrokerKwargs, BrokerOptions
from remuda.broker.shared.directory.filesystems import check_local
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk import MemoryDisk
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.errors import InvalidOption, Unsupported
from remuda.model.values.texts import shown
from remuda.model.values.urls import AMQP, AMQPS, MEMORY, Url, parse_url

if TYPE_CHECKING:
    from remuda.broker.coroutines import AsyncEmbeddedBroker
    from remuda.broker.rabbitmq.rabbit_broker import RabbitBroker

_PARTS: Final = frozenset({"extensions", "clock", "records"})
"""Arguments of `open_broker` that are not options."""


def open_broker(
    url: str | os.PathLike[str],
    *,
    extensions: Extensions | None = None,
    clock: Clock | None = None,
    **options: Unpack[BrokerKwargs],
) -> EmbeddedBroker:
    """Open the broker at `url` for use from threads. Options are those of `BrokerOptions`.

    A broker at `amqp://` has only the methods of the port.
    """
    if _is_rabbitmq(url):
        return cast("EmbeddedBroker", _rabbit(url, extensions, clock, options))
    made: list[Backend] = []
    try:
        _make(made, url, BrokerOptions.parse(**options), extensions, clock)
        broker = EmbeddedBroker(made[0])
        broker.place = str(parse_url(url))
        return broker
    except BaseException:
        _close_later(made)
        raise


async def open_async_broker(
    url: str | os.PathLike[str],
    *,
    extensions: Extensions | None = None,
    clock: Clock | None = None,
    **options: Unpack[BrokerKwargs],
) -> AsyncEmbeddedBroker:
    """Open the broker at `url` for use from coroutines."""
    if _is_rabbitmq(url):
        import asyncio

        opened = await asyncio.to_thread(_rabbit, url, extensions, clock, options)
        return cast("AsyncEmbeddedBroker", opened.aio)
    from remuda.broker.coroutines import AsyncEmbeddedBroker

    made: list[Backend] = []
    try:
        _make(made, url, BrokerOptions.parse(**options), extensions, clock)
        broker = AsyncEmbeddedBroker(made[0])
        broker.place = str(parse_url(url))
        return broker
    except BaseException:
        _close_later(made)
        raise


def check_opening(url: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` for a URL or options that no broker accepts. Opens nothing."""
    parse_url(url)
    BrokerOptions.parse(**{name: value for name, value in options.items() if name not in _PARTS})


def waits_for_others(url: str | os.PathLike[str]) -> bool:
    """Whether another process has to answer before the broker at a URL is open."""
    place = parse_url(url)
    if not place.is_directory:
        return place.is_network
    from remuda.broker.shared.directory.host_lock import is_held

    return is_held(Path(place.path))


def _check_clock(clock: Clock | None) -> None:
    if clock is not None and not callable(clock):
        raise InvalidOption(f"clock must be a function, not {shown(clock)}")


def _is_rabbitmq(url: str | os.PathLike[str]) -> bool:
    return parse_url(url).scheme in (AMQP, AMQPS)


def _rabbit(
    url: str | os.PathLike[str], extensions: Extensions | None, clock: Clock | None, options: BrokerKwargs
) -> RabbitBroker:
    from remuda.broker.rabbitmq.rabbit_broker import open_rabbit_broker

    _check_clock(clock)
    keep_freed_memory()
    if extensions is not None and extensions != Extensions():
        raise Unsupported("extensions are parts of the embedded broker; RabbitMQ does not take them", "extensions")
    return open_rabbit_broker(os.fspath(url), clock=clock, **options)


def _make(
    made: list[Backend],
    url: str | os.PathLike[str],
    options: BrokerOptions,
    extensions: Extensions | None,
    clock: Clock | None,
) -> None:
    """Open a broker's backend and add it to `made`: both in one call into C, so that no interrupt can come between the
    two and leave a backend open that nobody can close."""
    _check_clock(clock)
    keep_freed_memory()
    place = parse_url(url)
    if place.scheme == MEMORY:
        for name in ("lake", "collect_after_archive"):
            if getattr(options, name):
                raise InvalidOption(f"{name} needs a directory: a broker in memory writes no files")
        runtime = partial(Runtime, options=options, extensions=extensions, clock=clock, volatile=True)
        made.extend(map(runtime, (MemoryDisk(),)))
        return
    if place.is_directory and options.shared:
        from remuda.broker.shared.directory.shared_directory import SharedDirectory

        shared = partial(SharedDirectory, options=options, extensions=extensions, clock=clock)
        made.extend(map(shared, (place.path,)))
        return
    if place.is_directory:
        check_local(Path(place.path), force=options.force_network)
        runtime = partial(Runtime, options=options, extensions=extensions, clock=clock)
        made.extend(map(runtime, (DirectoryDisk(place.path, group=options.group),)))
        return
    made.append(_remote(place, extensions))


def _close_later(made: list[Backend]) -> None:
    """Close what the caller will not get. On threads of their own, which no interrupt reaches."""
    for backend in made:
        threading.Thread(target=backend.close, name="remuda-closing").start()


def _remote(place: Url, extensions: Extensions | None) -> Backend:
    from remuda.broker.shared.guest.remote import RemoteServer

    if extensions is not None and extensions != Extensions():
        raise Unsupported(f"extensions run in the broker's own process: they cannot be set for {place}", "extensions")
    return RemoteServer(place)
