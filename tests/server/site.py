"""A bus served over HTTP on a free port of this machine, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from remuda.bus.bus import Bus
from remuda.server import users as network
from remuda.server.http.app import create_app
from remuda.server.http.security.users import TAG_OF, Users
from remuda.server.http.service import MessagingService
from remuda.server.http.serving import Listen, Server

PASSWORD = "correct horse"


class Site:
    """The bus, its server, and a client for it."""

    def __init__(self, bus: Bus, server: Server, client: httpx.Client) -> None:
        self.bus = bus
        self.server = server
        self.client = client

    @property
    def address(self) -> str:
        return self.server.address.rstrip("/")

    def publish(self, topic: str, body: Any = None, **more: Any) -> str:
        answer = self.client.post("/api/v1/messages", json={"topic": topic, "body": body, **more})
        assert answer.status_code == 201, answer.text
        ids: list[str] = answer.json()["ids"]
        return ids[0]

    def pull(self, queue: str, **asked: Any) -> dict[str, Any]:
        answer = self.client.post(f"/api/v1/queues/{queue}/pull", json=asked)
        assert answer.status_code == 200, answer.text
        pulled: dict[str, Any] = answer.json()
        return pulled

    def queue(self, name: str) -> dict[str, Any]:
        answer = self.client.get(f"/api/v1/queues/{name}")
        assert answer.status_code == 200, answer.text
        summary: dict[str, Any] = answer.json()["summary"]
        return summary


def dashboard_users(**roles: str) -> Users:
    """Users of the dashboard with their roles; all have the same password."""
    known = [(network.User(name, tags=(TAG_OF[role],)), network.hashed(PASSWORD)) for name, role in roles.items()]
    return Users(network.Users(known))


@contextmanager
def serving(bus: Bus, *, service: MessagingService | None = None, **options: Any) -> Iterator[Site]:
    server = Server(create_app(service or bus, **options), Listen("127.0.0.1", 0))
    server.start()
    try:
        with httpx.Client(base_url=server.address, timeout=60) as client:
            yield Site(bus, server, client)
    finally:
        server.stop()


def until(look: Callable[[], Any], what: str = "it", seconds: float = 60) -> Any:
    """What `look` gives, once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)
    return found
