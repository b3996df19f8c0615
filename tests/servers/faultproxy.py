"""A TCP proxy on loopback that misbehaves on demand: cuts, delays, splits, corrupts, or goes silent.

    with FaultProxy("127.0.0.1", port) as proxy:
        connect to 127.0.0.1:proxy.port
        proxy.silent = True      # half-open: both ends stay connected, nothing passes
        proxy.cut()              # every connection is reset

It runs in a thread of its own, so that tests of blocking and of asyncio code can use it alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable


class FaultProxy:
    """Passes bytes between clients and one target. Faults may be changed at any time."""

    def __init__(self, host: str, port: int, *, seed: int = 0) -> None:
        self.target = (host, port)
        self.delay = 0.0
        """Seconds before each piece is passed on."""
        self.split = 0
        """Pass on pieces of at most this many bytes; 0 passes them as they come."""
        self.corrupt = 0.0
        """The chance that a piece going to the client has one byte changed."""
        self.silent = False
        """Pass nothing on, and keep everything that comes."""
        self.refuse = False
        """Close new connections at once."""
        self.accepted = 0
        self.passed = 0
        self.port = 0
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._stop.set)
        self._thread.join(60)

    def cut(self) -> None:
        """Reset every connection."""
        self._call(self._reset)

    def _call(self, function: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(60)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._reset()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _reset(self) -> None:
        for writer in list(self._writers):
            with contextlib.suppress(OSError):
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refuse:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        try:
            await asyncio.gather(
                self._pass(reader, there_writer, to_client=False), self._pass(there_reader, writer, to_client=True)
            )
        finally:
            self._writers -= {writer, there_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_client: bool) -> None:
        try:
            while data := await reader.read(65536):
                await self._send(writer, data, to_client)
        except (OSError, RuntimeError):
            pass
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, to_client: bool) -> None:
        if to_client and self._random.random() < self.corrupt:
            changed = bytearray(data)
            changed[self._random.randrange(len(changed))] ^= 0xFF
            data = bytes(changed)
        size = self.split or len(data)
        for start in range(0, len(data), size):
            if self.delay:
                await asyncio.sleep(self.delay)
            while self.silent:
                await asyncio.sleep(0.02)
            writer.write(data[start : start + size])
            await writer.drain()
            self.passed += min(size, len(data) - start)
