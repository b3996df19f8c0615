"""Health over HTTP: `/live`, `/ready`, `/health` with every part by name, and `/metrics`."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.values.extras import MissingExtra
from remuda.worker.metrics import exposition

if TYPE_CHECKING:
    from remuda.worker.worker import Worker


class Part(msgspec.Struct, frozen=True):
    """One part of a worker. `problem` is empty while it is up."""

    name: str
    problem: str = ""
    vital: bool = False
    """Whether the process must be restarted if this part is down."""


def report(parts: list[Part]) -> dict[str, object]:
    """The JSON document for these parts."""
    return {
        "status": "up" if not any(part.problem for part in parts) else "down",
        "parts": {part.name: "up" if not part.problem else part.problem for part in parts},
    }


class HealthServer:
    """Answers health probes in the background."""

    def __init__(self, worker: Worker, address: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                code, kind, body = answer(worker, self.path.partition("?")[0])
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        try:
            self._server = Server((address, port), Handler)
        except (OSError, OverflowError) as error:
            raise InvalidOption(f"health cannot be served on {address}:{port}: {error}") from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="worker health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def answer(worker: Worker, path: str) -> tuple[int, str, bytes]:
    """Status, content type and body for one path."""
    if path == "/metrics":
        try:
            return 200, "text/plain; version=0.0.4; charset=utf-8", exposition(worker)()
        except MissingExtra as missing:
            return 501, "text/plain; charset=utf-8", f"{missing}\n".encode()
    parts = worker.health()
    if path == "/live":
        parts = [part for part in parts if part.vital]
    elif path not in ("/ready", "/health"):
        return 404, "text/plain; charset=utf-8", b"not found; there are /live, /ready, /health and /metrics\n"
    document = report(parts)
    return (200 if document["status"] == "up" else 503), "application/json", msgspec.json.encode(document)
