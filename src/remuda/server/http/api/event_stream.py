"""The event log as a live stream (SSE), from any offset. Each client reads the log at its own pace.

A client that stops reading is dropped after a while, and can continue where it was. The number of clients is limited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from remuda.model.errors import RemudaError
from remuda.server.http.api.problems import Problem
from remuda.server.http.service import MessagingService

BATCH: Final = 500
_SEND_SECONDS: Final = 10.0
_BEAT_SECONDS: Final = 15.0
_POLL: Final = 0.25

Wanted = Callable[[dict[str, Any]], bool]


class Streams:
    """The clients that listen, up to a limit."""

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self.open = 0
        self.listeners: set[LogStream] = set()

    def enter(self) -> None:
        if self.open >= self.limit:
            raise Problem(
                503, "Too many streams", f"{self.limit} clients are listening already", headers={"Retry-After": "10"}
            )
        self.open += 1

    def leave(self) -> None:
        self.open -= 1


class LogStream(Response):
    """Sends entries of the log as they come, until the client disconnects or stops reading."""

    media_type = "text/event-stream"

    def __init__(
        self, service: MessagingService, streams: Streams, start: int, *, events: bool, wanted: Wanted, who: str = ""
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._streams = streams
        self.who = who
        self.since = time.time_ns() // 1000
        self.number = start
        """The next offset or position to send."""
        self.events = events
        self._wanted = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.listeners.add(self)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            gone = asyncio.ensure_future(_until_gone(receive))
            sending = asyncio.ensure_future(self._send_all(send))
            try:
                await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (gone, sending):
                    task.cancel()
                await asyncio.gather(gone, sending, return_exceptions=True)
        finally:
            self._streams.listeners.discard(self)
            self._streams.leave()

    async def _send_all(self, send: Send) -> None:
        async for text in self._texts():
            try:
                async with asyncio.timeout(_SEND_SECONDS):
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            except TimeoutError:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _texts(self) -> AsyncIterator[str]:
        yield "retry: 3000\n\n"
        name, silent = "position" if self.events else "offset", 0.0
        read = self._service.log_events if self.events else self._service.log_messages
        while True:
            try:
                entries = await asyncio.to_thread(read, self.number, BATCH)
            except RemudaError as error:
                yield f"event: problem\ndata: {msgspec.json.encode(str(error)).decode()}\n\n"
                return
            if entries:
                self.number = entries[-1][name] + 1
                texts = [
                    f"id: {entry[name]}\ndata: {msgspec.json.encode(entry).decode()}\n\n"
                    for entry in entries
                    if self._wanted(entry)
                ]
                if texts:
                    silent = 0.0
                    yield "".join(texts)
                continue
            await asyncio.sleep(_POLL)
            silent += _POLL
            if silent >= _BEAT_SECONDS:
                silent = 0.0
                yield ": still here\n\n"


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
