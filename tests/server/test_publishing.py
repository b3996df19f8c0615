"""U2: a request that publishes costs little: it waits for the disk without a thread of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remuda.bus.bus import Bus
from remuda.server.http.app import create_app

_HEADERS = [(b"host", b"127.0.0.1:80"), (b"content-type", b"application/json")]


class _Executor(ThreadPoolExecutor):
    def __init__(self) -> None:
        super().__init__(1)
        self.jobs = 0

    def submit(self, *arguments: Any, **more: Any) -> Future[Any]:
        self.jobs += 1
        return super().submit(*arguments, **more)


async def _post(app: Any, body: bytes) -> int:
    scope = {
        "type": "http", "method": "POST", "scheme": "http", "path": "/api/v1/messages", "query_string": b"",
        "headers": _HEADERS, "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80), "http_version": "1.1",
    }  # fmt: skip
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.alone
@pytest.mark.parametrize(
    ("body", "most"), [(b'{"topic": "order.placed"}', 660), (b'[{"topic": "order.placed"}, {"topic": "b"}]', 850)]
)
def test_u2_a_small_publish_takes_no_thread(tmp_path: Path, body: bytes, most: int) -> None:
    """Nor more than so many calls on the event loop's thread, everything included."""
    with Bus(tmp_path / "data") as bus:
        app = create_app(bus)

        async def publish() -> tuple[int, float]:
            assert await _post(app, body) == 201  # opens the broker
            executor = _Executor()
            asyncio.get_running_loop().set_default_executor(executor)
            calls = 0

            def count(frame: Any, event: str, argument: Any) -> None:
                nonlocal calls
                calls += event in ("call", "c_call")

            sys.setprofile(count)
            try:
                for _ in range(20):
                    assert await _post(app, body) == 201
            finally:
                sys.setprofile(None)
            return executor.jobs, calls / 20

        jobs, calls = asyncio.run(publish())
        assert jobs == 0
        assert not [one.name for one in threading.enumerate() if one.name.startswith("AnyIO")]
        assert calls < most, calls
