"""Idempotency keys: a request that is repeated under its key gets the first answer again, and publishes once."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from remuda.server.http.api.problems import Problem

KEPT: Final = 10_000
KEPT_BYTES: Final = 64 << 20
SECONDS: Final = 24 * 3600.0


class _Known:
    """A request that was made under a key, and its answer once there is one."""

    __slots__ = ("answer", "digest", "since", "size")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.since = time.monotonic()
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.size = 0


class Idempotency:
    """Remembers answers for a day while the server runs: the newest ten thousand, and no more than 64 MiB of them."""

    def __init__(self, limit: int = KEPT, limit_bytes: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    async def once(self, who: str, key: str, content: bytes, do: Callable[[], Awaitable[bytes]]) -> bytes:
        if not 1 <= len(key) <= 255 or not key.isprintable():
            raise Problem(400, "Invalid key", "an Idempotency-Key is 1 to 255 printable characters")
        digest = hashlib.sha256(content).digest()
        known = self._known.get((who, key))
        if known is not None and time.monotonic() - known.since < SECONDS:
            if known.digest != digest:
                raise Problem(422, "Key used before", "this Idempotency-Key was used for another request")
            return await asyncio.shield(known.answer)
        self._forget((who, key))
        made = self._known[who, key] = _Known(digest)
        try:
            answer = await do()
        except BaseException as error:
            # A failed request may be sent again under the same key.
            if self._known.get((who, key)) is made:
                self._forget((who, key))
            cut_off = Problem(503, "Cut off", "the first request with this key was cut off; send it again")
            made.answer.set_exception(error if isinstance(error, Exception) else cut_off)
            made.answer.exception()
            raise
        made.answer.set_result(answer)
        if self._known.get((who, key)) is made:
            made.size = len(answer)
            self._bytes += made.size
        while self._known and (len(self._known) > self._limit or self._bytes > self._limit_bytes):
            self._forget(next(iter(self._known)))
        return answer

    def _forget(self, name: tuple[str, str]) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._bytes -= known.size
