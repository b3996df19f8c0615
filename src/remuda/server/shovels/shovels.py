"""All shovels of a server: kept in a file beside its directory, since they hold passwords."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.values.urls import parse_url
from remuda.server.secretfile import write_secret_file
from remuda.server.shovels.definition import Shovel, read_shovel
from remuda.server.shovels.running import RunningShovel

if TYPE_CHECKING:
    from remuda.server.amqp.amqp_server import AmqpServer

_log = logging.getLogger("remuda.shovels")


class Kept(msgspec.Struct, frozen=True):
    """A definition in the file."""

    vhost: str
    name: str
    value: dict[str, Any]


class Shovels:
    """Starts, replaces and ends shovels. Without a file, they last as long as the server."""

    def __init__(self, server: AmqpServer, file: Path | None) -> None:
        self._server = server
        self._file = file
        self._running: dict[tuple[str, str], RunningShovel] = {}
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> None:
        """Go on with those that were set before."""
        for kept in await asyncio.to_thread(_read, self._file):
            try:
                self._launch(read_shovel(kept.vhost, kept.name, kept.value))
            except InvalidOption as error:
                _log.error("shovel %r of vhost %r is left out: %s", kept.name, kept.vhost, error)

    async def close(self) -> None:
        await self._end(list(self._running.values()))
        self._running.clear()

    def __iter__(self) -> Iterator[RunningShovel]:
        return iter([self._running[place] for place in sorted(self._running)])

    def find(self, vhost: str, name: str) -> RunningShovel | None:
        return self._running.get((vhost, name))

    async def put(self, vhost: str, name: str, value: Any) -> bool:
        """Set a shovel, and start it anew if it has changed; returns whether it is new."""
        shovel = read_shovel(vhost, name, value)
        async with self._one_at_a_time:
            before = self._running.get((vhost, name))
            if before is not None and before.shovel == shovel:
                return False
            await self._keep({**self._definitions(), (vhost, name): shovel.value})
            if before is not None:
                await self._end([before])
            self._launch(shovel)
        return before is None

    async def remove(self, vhost: str, name: str) -> bool:
        """End a shovel for good; False if there is none."""
        async with self._one_at_a_time:
            running = self._running.get((vhost, name))
            if running is None:
                return False
            kept = self._definitions()
            del kept[vhost, name]
            await self._keep(kept)
            del self._running[vhost, name]
            running.forgets = True
            await self._end([running])
        return True

    async def restart(self, vhost: str, name: str) -> bool:
        """Connect a shovel again at once; False if there is none."""
        async with self._one_at_a_time:
            running = self._running.get((vhost, name))
            if running is not None:
                await self._end([running])
                self._launch(running.shovel)
        return running is not None

    async def remove_vhost(self, vhost: str) -> None:
        for place in [place for place in self._running if place[0] == vhost]:
            await self.remove(*place)

    def _launch(self, shovel: Shovel) -> None:
        running = RunningShovel(self._server, shovel)
        self._running[shovel.vhost, shovel.name] = running
        running.task = asyncio.create_task(self._run(running))

    async def _run(self, running: RunningShovel) -> None:
        await running.run()
        shovel = running.shovel
        async with self._one_at_a_time:  # it has moved all it was to move
            if self._running.get((shovel.vhost, shovel.name)) is running:
                kept = self._definitions()
                del kept[shovel.vhost, shovel.name]
                del self._running[shovel.vhost, shovel.name]
                await self._keep(kept)

    async def _end(self, ending: list[RunningShovel]) -> None:
        tasks = [one.task for one in ending if one.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=15)

    def _definitions(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {place: one.shovel.value for place, one in self._running.items()}

    async def _keep(self, definitions: Mapping[tuple[str, str], dict[str, Any]]) -> None:
        if self._file is not None:
            listed = [Kept(vhost, name, value) for (vhost, name), value in sorted(definitions.items())]
            text = msgspec.json.format(msgspec.json.encode(listed)).decode()
            await asyncio.to_thread(write_secret_file, self._file, text)


def _read(file: Path | None) -> list[Kept]:
    if file is None:
        return []
    with contextlib.suppress(FileNotFoundError):
        try:
            return msgspec.json.decode(file.read_bytes(), type=list[Kept])
        except msgspec.MsgspecError as error:
            raise InvalidOption(
                f"the shovels in {str(file)!r} cannot be read: {error}; mend or remove the file"
            ) from None
    return []


def shovels_file(data: str) -> Path | None:
    """Where a directory's shovels are kept: beside it. None for a broker elsewhere."""
    url = parse_url(data)
    return Path(url.path).with_name(f"{Path(url.path).name}.shovels.json") if url.is_directory else None
