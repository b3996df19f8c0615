"""T4: an OpenSearch that is busy for a while is asked again, whether it refuses single actions or a whole request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opensearchpy")

from remuda.index.opensearch.server import Action, Address, Server
from remuda.index.port import IndexUnusable


class Busy(ThreadingHTTPServer):
    """Answers bulk requests with the statuses in `answers`, one after the other, and from then on with success."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[int] = []
        self.requests = 0


class _Handler(BaseHTTPRequestHandler):
    server: Busy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests += 1
        status = self.server.answers.pop(0) if self.server.answers else 200
        items = [{"index": {"status": 201}} for _ in body.splitlines()[::2]]
        answer = {"errors": False, "items": items} if status == 200 else {"error": {"reason": "queue is full"}}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    monkeypatch.setattr("remuda.index.opensearch.server.time.sleep", lambda seconds: None)
    with Busy() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def send(busy: Busy) -> list[tuple[Action, int]]:
    server = Server(Address(f"http://127.0.0.1:{busy.server_port}", "remuda", None))
    try:
        return list(server.bulk(Action("index", "remuda-q", str(number), {}) for number in range(3)))
    finally:
        server.close()


def test_t4_a_request_that_is_refused_whole_is_repeated(busy: Busy) -> None:
    busy.answers = [429, 429]
    assert send(busy) == []
    assert busy.requests == 3


def test_t4_a_server_that_stays_busy_is_reported(busy: Busy) -> None:
    busy.answers = [429] * 100
    with pytest.raises(IndexUnusable, match="too busy"):
        send(busy)


def test_t4_what_is_wrong_is_not_repeated(busy: Busy) -> None:
    busy.answers = [400] * 100
    with pytest.raises(IndexUnusable, match="queue is full"):
        send(busy)
    assert busy.requests == 1
