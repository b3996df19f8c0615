"""Idempotency keys: a request that is repeated under its key gets the first one's answer, and publishes once."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from remuda.server.http.problems import Problem

KEPT: Final = 10_000
SECONDS: Final = 24 * 3600.0


class Idempotency:
    """Remembers answers for a day while the server runs, the newest ten thousand."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._known: OrderedDict[tuple[str, str], tuple[bytes, float, asyncio.Future[Any]]] = OrderedDict()

    async def once(self, who: str, key: str, content: bytes, do: Callable[[], Awaitable[Any]]) -> Any:
        if not 1 <= len(key) <= 255 or not key.isprintable():
            raise Problem(400, "Invalid key", "an Idempotency-Key is 1 to 255 printable characters")
        digest = hashlib.sha256(content).digest()
        known = self._known.get((who, key))
        if known is not None and time.monotonic() - known[1] < SECONDS:
            if known[0] != digest:
                raise Problem(422, "Key used before", "this Idempotency-Key came with another request before")
            return await asyncio.shield(known[2])
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._known[who, key] = (digest, time.monotonic(), future)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)
        try:
            answer = await do()
        except BaseException as error:
            # What failed may be tried again under the same key.
            self._known.pop((who, key), None)
            future.set_exception(error if isinstance(error, Exception) else RuntimeError("cancelled"))
            future.exception()
            raise
        future.set_result(answer)
        return answer
