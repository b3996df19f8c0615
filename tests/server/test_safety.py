"""U2: what keeps strangers out and browsers honest."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from remuda.bus.bus import Bus
from remuda.model.errors import InvalidOption
from remuda.server import users as network
from remuda.server.http.api.api import Api
from remuda.server.http.api.endpoints import endpoints
from remuda.server.http.app import create_app
from remuda.server.http.security.masks import MASK, masked
from remuda.server.http.security.users import Role, User, Users, add_user
from remuda.server.http.serving import Listen, check_safe, read_listen
from tests.server.site import PASSWORD, Site, dashboard_users, serving


@pytest.fixture(scope="module")
def users() -> Users:
    return dashboard_users(ann="operator", vic="viewer")


@pytest.fixture(scope="module")
def guarded(users: Users) -> Iterator[Site]:
    with Bus() as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.*"])
        with serving(bus, users=users) as site:
            yield site


@pytest.fixture(scope="module")
def open_site() -> Iterator[Site]:
    with Bus() as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.*"])
        with serving(bus) as site:
            yield site


@pytest.fixture
def clients() -> Iterator[Callable[[Site], httpx.Client]]:
    """Browsers without a past, as many as are asked for."""
    with ExitStack() as stack:

        def make(site: Site) -> httpx.Client:
            return stack.enter_context(httpx.Client(base_url=site.address, timeout=30))

        yield make


Clients = Callable[[Site], httpx.Client]


def csrf_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert found, page.text
    return found[1]


def log_in(client: httpx.Client, name: str, password: str = PASSWORD) -> httpx.Client:
    token = csrf_of(client.get("/login"))
    answer = client.post("/login", data={"name": name, "password": password, "csrf": token})
    assert answer.status_code == 303, answer.text
    return client


@pytest.mark.parametrize("listen", ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "example.org:80"])
def test_beyond_this_machine_it_does_not_start_without_users(listen: str, users: Users) -> None:
    """U2"""
    with pytest.raises(InvalidOption, match=r"remuda dashboard-user users\.toml NAME.*--users users\.toml"):
        check_safe(read_listen(listen), None)
    check_safe(read_listen(listen), users)


@pytest.mark.parametrize("listen", ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "localhost:80", ":80", "80"])
def test_this_machine_needs_no_login(listen: str) -> None:
    """U2"""
    check_safe(read_listen(listen), None)


@pytest.mark.parametrize("listen", ["", "x", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1"])
def test_where_to_listen_is_checked(listen: str) -> None:
    with pytest.raises(InvalidOption, match="--listen takes HOST:PORT"):
        read_listen(listen)


def test_a_foreign_host_header_is_refused(open_site: Site) -> None:
    """U2: DNS rebinding."""
    port = open_site.address.rpartition(":")[2]
    for host, status in [
        ("evil.example", 403), (f"evil.example:{port}", 403), ("localhost", 200), (f"127.0.0.1:{port}", 200),
        ("[::1]", 200), ("127.0.0.1.evil.example", 403), ("a@127.0.0.1", 400), ("localhost.evil", 403),
    ]:  # fmt: skip
        assert open_site.client.get("/api/v1/queues", headers={"Host": host}).status_code == status, host


def test_without_users_only_this_machine_is_answered() -> None:
    """U2: also where the application is mounted in another, or behind a proxy on the same machine."""

    async def status(client: tuple[str, int], headers: dict[str, str]) -> int:
        with Bus() as bus:
            transport = httpx.ASGITransport(create_app(bus), client=client)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asking:
                return (await asking.get("/api/v1/openapi.json", headers=headers)).status_code

    import asyncio

    assert asyncio.run(status(("127.0.0.1", 5), {})) == 200
    assert asyncio.run(status(("192.0.2.7", 5), {})) == 403
    assert asyncio.run(status(("127.0.0.1", 5), {"X-Forwarded-For": "192.0.2.7"})) == 403


def test_every_verb_needs_a_login_and_its_role(guarded: Site, clients: Clients) -> None:
    """U2"""
    stranger = clients(guarded)
    viewer = log_in(clients(guarded), "vic")
    basic = {"Authorization": "Basic " + base64.b64encode(f"vic:{PASSWORD}".encode()).decode()}
    for operation in endpoints(Api()):
        path = re.sub(r"{answer:\w+}", "ack", operation.path)
        path = re.sub(r"{(\w+)(:\w+)?}", "orders", path)
        assert stranger.request(operation.method, path).status_code == 401, operation
        if operation.method != "GET":
            assert operation.role is Role.OPERATOR, operation
            assert viewer.request(operation.method, path).status_code == 403, operation
            assert stranger.request(operation.method, path, headers=basic).status_code == 403, operation
    for path in ("/", "/queues/orders", "/messages", "/dead", "/tail", "/latency", "/publish", "/create-queue"):
        assert stranger.get(path).headers["location"].endswith("/login")
        assert viewer.get(path).status_code == 200
    token = csrf_of(viewer.get("/"))
    for path in ("/queues/orders", "/publish", "/messages/1/edit", "/create-queue"):
        assert stranger.post(path, data={"action": "pause"}).status_code == 401
        assert viewer.post(path, data={"action": "pause", "csrf": token}).status_code == 403
    assert 'value="pause"' not in viewer.get("/queues/orders").text
    assert stranger.get("/metrics").status_code == 401
    assert stranger.get("/health/live").status_code == 200


def test_a_session_ends_with_log_out(guarded: Site, clients: Clients) -> None:
    """U2"""
    client = log_in(clients(guarded), "ann")
    page = client.get("/")
    assert page.status_code == 200
    assert client.post("/logout", data={"csrf": csrf_of(page)}).status_code == 303
    assert client.get("/").status_code == 303


def test_cookies_are_out_of_reach_of_scripts_and_other_sites(guarded: Site) -> None:
    """U2"""
    cookie = httpx.get(f"{guarded.address}/login").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_a_form_without_its_token_does_nothing(open_site: Site, clients: Clients) -> None:
    """U2: CSRF, also without a login."""
    client = clients(open_site)
    token = csrf_of(client.get("/queues/orders"))
    for wrong in ({}, {"csrf": ""}, {"csrf": token[:-1] + "x"}):
        assert client.post("/queues/orders", data={"action": "pause", **wrong}).status_code == 403
    stranger = clients(open_site)
    stranger.get("/")
    assert stranger.post("/queues/orders", data={"action": "pause", "csrf": token}).status_code == 403
    assert open_site.queue("orders")["status"] == "running"
    assert client.post("/queues/orders", data={"action": "pause", "csrf": token}).status_code == 303
    assert open_site.queue("orders")["status"] == "only-publish"
    open_site.client.post("/api/v1/queues/orders/resume")


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
def test_pages_of_other_sites_cannot_use_the_api(open_site: Site, headers: dict[str, str]) -> None:
    """U2"""
    answer = open_site.client.post("/api/v1/messages", json={"topic": "order.x"}, headers=headers)
    assert answer.status_code == 403
    own = {"Origin": open_site.address, "Sec-Fetch-Site": "same-origin"}
    assert open_site.client.post("/api/v1/messages", json={"topic": "order.x"}, headers=own).status_code == 201


def test_a_session_at_the_api_needs_its_token_too(guarded: Site, clients: Clients) -> None:
    """U2"""
    client = log_in(clients(guarded), "ann")
    assert client.post("/api/v1/queues/orders/pause").status_code == 403
    token = csrf_of(client.get("/"))
    headers = {"X-CSRF-Token": token}
    assert client.post("/api/v1/queues/orders/pause", headers=headers).status_code == 200
    assert client.post("/api/v1/queues/orders/resume", headers=headers).status_code == 200


def test_wrong_passwords_are_slowed_down(clients: Clients) -> None:
    """U2"""
    with Bus() as bus, serving(bus, users=dashboard_users(ann="operator")) as site:
        client = clients(site)
        token = csrf_of(client.get("/login"))
        wrong = {"name": "ann", "password": "guess", "csrf": token}
        assert [client.post("/login", data=wrong).status_code for _ in range(6)] == [401] * 5 + [429]
        right = {**wrong, "password": PASSWORD}
        assert client.post("/login", data=right).status_code == 429
        basic = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        assert client.get("/api/v1/queues", headers={"Authorization": f"Basic {basic}"}).status_code == 429


def test_what_an_operator_does_is_logged_with_the_name(guarded: Site, clients: Clients) -> None:
    """U2 B15"""
    ann = log_in(clients(guarded), "ann")
    token = csrf_of(ann.get("/"))
    id = guarded.bus.publish("order.placed", 1)
    ann.post("/queues/orders", data={"action": "clear", "confirm": "orders", "csrf": token})
    ann.post("/queues/orders", data={"action": "reprocess", "scope": "all", "csrf": token})
    life = ann.get(f"/api/v1/messages/{id}").json()
    assert [entry["who"] for entry in life["timeline"] if entry["who"]] == ["ann", "ann"]
    ann.post("/publish", data={"topic": "order.test", "body": "1", "mime_type": "text/plain", "csrf": token})
    found = ann.get("/api/v1/messages?topic=order.test").json()["messages"][0]
    headers = ann.get(f"/api/v1/messages/{found['id']}").json()["document"]["message"]["headers"]
    assert headers["remuda-user"] == "ann"


def test_headers_of_every_answer(open_site: Site) -> None:
    """U2"""
    for path in ("/", "/api/v1/queues", "/static/remuda.js", "/nothing", "/api/v1/nothing"):
        headers = open_site.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_pages_hold_no_inline_script_style_or_outside_address(open_site: Site) -> None:
    """U1"""
    id = open_site.publish("order.placed", 1)
    for path in ("/", "/queues/orders", "/messages", f"/messages/{id}", f"/messages/{id}/edit", "/dead", "/tail",
                 "/latency", "/publish"):  # fmt: skip
        text = open_site.client.get(path).text
        assert not re.search(r"<script(?![^>]* src=)|\son\w+=|<style|\sstyle=|javascript:", text), path
        assert not re.search(r"""(?:href|src|action)=["'](?:https?:)?//""", text), path


@pytest.mark.parametrize(
    "name",
    ["Authorization", "X-Api-Key", "api_key", "Set-Cookie", "db.password", "access-token", "token"],
)
def test_secrets_in_headers_are_masked(name: str) -> None:
    """U2"""
    assert masked({name: "s3cret"}) == {name: MASK}


@pytest.mark.parametrize("name", ["traceparent", "cap-msg-id", "tokens-used", "remuda-user", "author"])
def test_other_headers_are_shown(name: str) -> None:
    assert masked({name: "1"}) == {name: "1"}


def test_users_are_kept_hashed_and_replaced(tmp_path: Path) -> None:
    """U2"""
    file = tmp_path / "users.toml"
    assert add_user(file, "ann", PASSWORD, "viewer")
    assert add_user(file, "bob", PASSWORD, "viewer")
    assert not add_user(file, "ann", PASSWORD, "operator")
    assert PASSWORD not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    users = Users.load(file)
    assert users.check("ann", PASSWORD) == User("ann", Role.OPERATOR)
    assert users.check("ann", "wrong") is None
    assert users.check("eve", PASSWORD) is None
    network.add_user(file, "eve", PASSWORD, {"/": {}})
    assert Users.load(file).check("eve", PASSWORD) is None, "who may use AMQP may not use the dashboard for that"
    assert network.Users.load(file).find("ann").vhosts == {}, "nor the other way round"  # type: ignore[union-attr]
    file.unlink()
    network.add_user(file, "eve", PASSWORD, {"/": {}})
    with pytest.raises(InvalidOption, match=r"nobody in .* may use the dashboard; let somebody"):
        Users.load(file)


def test_a_users_file_keeps_its_mode_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    """U2"""
    file = tmp_path / "users.toml"
    add_user(file, "ann", PASSWORD, "viewer")
    file.chmod(0o644)  # as where a server in a container reads it, as another user
    add_user(file, "bob", PASSWORD, "viewer")
    assert file.stat().st_mode & 0o777 == 0o644
    nowhere = tmp_path / "nowhere" / "users.toml"
    with pytest.raises(InvalidOption, match=r"users\.toml' cannot be written: No such file or directory; nothing was"):
        add_user(nowhere, "ann", PASSWORD, "viewer")
    file.write_text(f"\n{file.read_text()}eve operator scrypt x y\n")
    with pytest.raises(InvalidOption, match=r"not valid TOML.*line 14"):
        Users.load(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidOption, match="not valid TOML"):
        Users.load(file)
    with pytest.raises(InvalidOption, match="cannot be read: Is a directory"):
        add_user(tmp_path, "ann", PASSWORD, "viewer")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("name", "password", "role", "said"),
    [("", PASSWORD, "viewer", "name"), ("a:b", PASSWORD, "viewer", "colon"), ("a", "short", "viewer", "8 characters"),
     ("a", PASSWORD, "root", "viewer or operator")],
)  # fmt: skip
def test_users_are_checked(tmp_path: Path, name: str, password: str, role: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        add_user(tmp_path / "users.toml", name, password, role)
    assert not list(tmp_path.glob("*.toml"))


def test_listen_knows_what_is_local() -> None:
    assert Listen("127.0.0.1", 1).is_local
    assert not Listen("0.0.0.0", 1).is_local
