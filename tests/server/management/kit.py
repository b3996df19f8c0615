"""An AMQP server with its management API, and a client for it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from remuda.server.addresses import Listen
from remuda.server.http.serving import Server
from remuda.server.management.app import ManagementApp
from remuda.server.management.views import Views
from remuda.server.users import Users
from tests.servers.amqpd import RunningServer


class Managed:
    """The server, and its API at an address."""

    def __init__(self, running: RunningServer, address: str, views: Views) -> None:
        self.running = running
        self.views = views
        self.address = address.rstrip("/")
        self.port = int(self.address.rpartition(":")[2])
        self.client = httpx.Client(base_url=f"{self.address}/api/", auth=("guest", "guest"), timeout=60)

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self, method: str, path: str, json: Any = None, auth: tuple[str, str] | None = None) -> int:
        more = {} if auth is None else {"auth": auth}
        return self.client.request(method, path, json=json, **more).status_code  # type: ignore[arg-type]

    def amqp(self, vhost: str = "%2F", user: str = "guest:guest") -> str:
        return f"amqp://{user}@127.0.0.1:{self.running.port}/{vhost}"


@contextlib.contextmanager
def managed(url: str = "memory://", users: Users | None = None, **more: Any) -> Iterator[Managed]:
    with RunningServer(url, users=users, **more) as running:
        views = Views(running.server)
        views.ports = list(running.server.ports)
        server = Server(ManagementApp(running.server, views, running.loop), Listen("127.0.0.1", 0))
        server.start()
        found = Managed(running, server.address, views)
        try:
            yield found
        finally:
            found.client.close()
            server.stop()


def rabbitmqadmin() -> str | None:
    """RabbitMQ's own command, version 1, where it is installed."""
    inside = sorted(Path("/usr/lib/rabbitmq").glob("lib/*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"))
    return str(inside[-1]) if inside else shutil.which("rabbitmqadmin")
