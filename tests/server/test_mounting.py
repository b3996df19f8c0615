"""`bus.dashboard()` in another application, and the `remuda dashboard` command."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

import remuda
from remuda.bus.bus import Bus
from remuda.cli import main
from remuda.model.errors import InvalidOption
from remuda.server.http.security.users import Role, User
from remuda.server.http.serving import Listen, Server
from tests.server.site import serving, until


def test_mounted_in_another_application_it_finds_its_own_addresses() -> None:
    """U1"""

    def who(request: Request) -> User | None:
        name = request.headers.get("x-user")
        return User(name, Role.VIEWER if name == "vic" else Role.OPERATOR) if name else None

    with Bus() as bus:
        bus.broker.create_queue("orders")
        app = Starlette(routes=[Mount("/admin/messaging", bus.dashboard(identify=who))])
        server = Server(app, Listen("127.0.0.1", 0))
        server.start()
        try:
            with httpx.Client(base_url=f"{server.address}admin/messaging") as client:
                assert client.get("/").status_code == 401
                page = client.get("/", headers={"X-User": "ann"})
                assert page.status_code == 200
                for address in re.findall(r'(?:href|src|hx-get|action)="(/[^"]*)"', page.text):
                    assert address.startswith("/admin/messaging/"), address
                    local = address.removeprefix("/admin/messaging")
                    assert client.get(local, headers={"X-User": "ann"}).status_code == 200, address
                token = re.search(r'name="csrf" value="(\w+)"', client.get("/publish", headers={"X-User": "ann"}).text)
                assert token
                form = {"action": "pause", "csrf": token[1]}
                assert client.post("/queues/orders", data=form, headers={"X-User": "vic"}).status_code == 403
                paused = client.post("/queues/orders", data=form, headers={"X-User": "ann"})
                assert paused.headers["location"] == "/admin/messaging/queues/orders"
        finally:
            server.stop()


def test_an_application_asks_its_own_login_also_when_that_takes_a_while() -> None:
    """U1: whoever is nobody there is told so in a page; programs get an error."""

    async def who(request: Request) -> User | None:
        await asyncio.sleep(0)
        return User("ann", Role.OPERATOR) if "x-user" in request.headers else None

    with Bus() as bus, serving(bus, identify=who) as site:
        client = site.client
        refused = client.get("/workers")
        assert (refused.status_code, "Log in first" in refused.text, "/queues" in refused.text) == (401, True, False)
        assert client.get("/api/v1/queues").json()["detail"] == "log in first"
        assert client.get("/workers", headers={"hx-request": "true"}).headers["hx-refresh"] == "true"
        assert client.get("/workers", headers={"x-user": "ann"}).status_code == 200


def test_options_are_checked() -> None:
    with Bus() as bus:
        with pytest.raises(InvalidOption, match="not both"):
            bus.dashboard(users="x", identify=lambda request: None)
        with pytest.raises(InvalidOption, match="list of names"):
            bus.dashboard(hosts="example.org")
        with pytest.raises(InvalidOption, match="unknown option 'stream'"):
            bus.dashboard(stream=1)
        with pytest.raises(InvalidOption, match="cannot be read"):
            bus.dashboard(users="/nowhere/users.txt")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "remuda.cli", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parent.parent), "REMUDA_PASSWORD": "correct horse"}


def test_the_command_serves_a_directory_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """U1 U3"""
    with Bus(tmp_path / "data") as bus:
        bus.broker.create_queue("orders", type="pull")
    with pytest.raises(SystemExit):  # a slip does not make a directory
        main(["dashboard", str(tmp_path / "date"), "--listen", "127.0.0.1:0"])
    assert not (tmp_path / "date").exists()
    arguments = _command("dashboard", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=_environment(), text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address, line
        assert until(lambda: httpx.get(f"{address[0]}health/ready", timeout=60).status_code == 200)
        assert "orders" in httpx.get(address[0], timeout=60).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_command_refuses_to_listen_to_strangers_and_says_what_to_do(tmp_path: Path) -> None:
    """U2"""
    directory, users = str(tmp_path / "data"), str(tmp_path / "users.toml")
    arguments = _command("dashboard", directory, "--listen", "0.0.0.0:0")
    done = subprocess.run(arguments, capture_output=True, text=True, env=_environment(), timeout=100, check=False)
    assert done.returncode == 1
    assert "remuda dashboard-user users.toml NAME" in done.stderr
    assert not Path(directory).exists()
    arguments = _command("dashboard-user", users, "ann", "--role", "viewer")
    done = subprocess.run(arguments, capture_output=True, text=True, env=_environment(), timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "monitoring" in Path(users).read_text(), "as RabbitMQ calls who may look"
