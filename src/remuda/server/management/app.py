"""Addresses of the management API, and who may call them. Everything runs on the loop of the AMQP server."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from remuda.model.errors import NotFound, RemudaError
from remuda.server.addresses import is_loopback
from remuda.server.amqp.amqp_server import AmqpServer
from remuda.server.amqp.protocol.failures import ACCESS_REFUSED, NOT_FOUND, Failure
from remuda.server.management import changes, definitions, metrics, parameters
from remuda.server.management.calls import Answer, Call, Refusal, bad_request, not_found
from remuda.server.management.changes import plain
from remuda.server.management.paging import listed
from remuda.server.management.views import NODE, Views, policy_view, readable
from remuda.server.users import User

_log = logging.getLogger("remuda.management")
_LARGEST: Final = 64 << 20
_DAYS: Final = {"day": 1, "week": 7, "month": 30, "year": 365}
_SAFE: Final = ("GET", "HEAD")

Handler = Callable[[Call, Views], Awaitable[Answer]]
_Receive = Callable[[], Awaitable[dict[str, Any]]]
_Send = Callable[[dict[str, Any]], Awaitable[None]]


async def _overview(call: Call, views: Views) -> Answer:
    return Answer(body=await views.overview())


async def _nodes(call: Call, views: Views) -> Answer:
    node = views.node()
    if call.path.get("name", NODE) != NODE:
        raise not_found()
    return Answer(body=node if "name" in call.path else [node])


async def _queues(call: Call, views: Views) -> Answer:
    return Answer(body=listed(await views.queues(call.vhosts()), call.query))


async def _queue(call: Call, views: Views) -> Answer:
    vhost = call.vhost()
    return _there(await views.queue(vhost, vhost.queue(call.path["name"])))


async def _exchanges(call: Call, views: Views) -> Answer:
    return Answer(body=listed(views.exchanges(call.vhosts()), call.query))


async def _exchange(call: Call, views: Views) -> Answer:
    vhost = call.vhost()
    name = call.path["name"]
    full = vhost.exchange("" if name == "amq.default" else name)
    declaration = await call.server.topology.exchange(full)
    if declaration is None:
        raise not_found()
    return Answer(body={**views.exchange(vhost, full, declaration), "incoming": [], "outgoing": []})


async def _bindings(call: Call, views: Views) -> Answer:
    return Answer(body=listed(await views.bindings(call.vhosts()), call.query))


async def _bindings_of_queue(call: Call, views: Views) -> Answer:
    return await _bindings_with(call, views, "queue", "destination")


async def _bindings_from(call: Call, views: Views) -> Answer:
    return await _bindings_with(call, views, None, "source")


async def _bindings_to(call: Call, views: Views) -> Answer:
    return await _bindings_with(call, views, "exchange", "destination")


async def _bindings_with(call: Call, views: Views, kind: str | None, end: str) -> Answer:
    name = "" if call.path["name"] == "amq.default" else call.path["name"]
    found = [
        one for one in await views.bindings([call.vhost()])
        if one[end] == name and kind in (None, one["destination_type"])
    ]  # fmt: skip
    return Answer(body=listed(found, call.query))


def _visible(call: Call, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Connections and channels: one's own or, for who monitors, all."""
    vhost = call.path.get("vhost")
    return [
        item for item in items
        if (call.sees_all or item["user"] == call.user.name) and vhost in (None, item["vhost"])
    ]  # fmt: skip


async def _connections(call: Call, views: Views) -> Answer:
    return Answer(body=listed(_visible(call, views.connections()), call.query))


async def _connections_of_user(call: Call, views: Views) -> Answer:
    found = [one for one in views.connections() if one["user"] == call.path["name"]]
    return Answer(body=listed(_visible(call, found), call.query))


async def _connection(call: Call, views: Views) -> Answer:
    return _named(_visible(call, views.connections()), call.path["name"])


async def _channels_of_connection(call: Call, views: Views) -> Answer:
    found = [one for one in views.channels() if one["connection_details"]["name"] == call.path["name"]]
    return Answer(body=listed(_visible(call, found), call.query))


async def _channels(call: Call, views: Views) -> Answer:
    return Answer(body=listed(_visible(call, views.channels()), call.query))


async def _channel(call: Call, views: Views) -> Answer:
    found: dict[str, Any] = _named(_visible(call, views.channels()), call.path["name"]).body
    consumers = [one for one in views.consumers(call.vhosts()) if one["channel_details"]["name"] == found["name"]]
    return Answer(body={**found, "consumer_details": consumers, "publishes": [], "deliveries": []})


async def _consumers(call: Call, views: Views) -> Answer:
    return Answer(body=listed(views.consumers(call.vhosts()), call.query))


async def _vhosts(call: Call, views: Views) -> Answer:
    return Answer(body=listed(await views.vhosts(call.vhosts()), call.query))


async def _vhost(call: Call, views: Views) -> Answer:
    return Answer(body=(await views.vhosts([call.vhost()]))[0])


async def _users(call: Call, views: Views) -> Answer:
    call.require_administrator()
    return Answer(body=listed([definitions.user_view(call.server, user) for user in call.users], call.query))


async def _users_without_permissions(call: Call, views: Views) -> Answer:
    call.require_administrator()
    shown = [definitions.user_view(call.server, user) for user in call.users if not user.vhosts]
    return Answer(body=listed(shown, call.query))


async def _user(call: Call, views: Views) -> Answer:
    call.require_administrator()
    user = call.find_user(call.path["name"])
    return _there(None if user is None else definitions.user_view(call.server, user))


def _permissions(call: Call) -> list[dict[str, Any]]:
    call.require_administrator()
    return [one for user in call.users for one in definitions.permissions_of(user)]


async def _all_permissions(call: Call, views: Views) -> Answer:
    found = [
        one for one in _permissions(call)
        if call.path.get("vhost") in (None, one["vhost"]) and call.path.get("user") in (None, one["user"])
    ]  # fmt: skip
    return Answer(body=listed(found, call.query))


async def _permission(call: Call, views: Views) -> Answer:
    where = call.path["vhost"], call.path["user"]
    return _there(next((one for one in _permissions(call) if (one["vhost"], one["user"]) == where), None))


async def _policies(call: Call, views: Views) -> Answer:
    known = call.server.topology.policies
    found = [
        policy_view(vhost.name, policy) for vhost in call.vhosts() for policy in known.get(vhost.name, {}).values()
    ]
    return Answer(body=listed(found, call.query))


async def _policy(call: Call, views: Views) -> Answer:
    vhost = call.vhost().name
    policy = call.server.topology.policies.get(vhost, {}).get(call.path["name"])
    return _there(None if policy is None else policy_view(vhost, policy))


async def _whoami(call: Call, views: Views) -> Answer:
    tags = ["administrator"] if call.user.everywhere else list(call.user.tags)
    return Answer(body={"name": call.user.name, "tags": tags})


async def _export(call: Call, views: Views) -> Answer:
    if "vhost" in call.path:
        call.require_policymaker()
        return Answer(body=await definitions.exported(call.server, views, call.entered().name))
    call.require_administrator()
    return Answer(body=await definitions.exported(call.server, views))


async def _import(call: Call, views: Views) -> Answer:
    call.require_administrator()
    vhost = call.vhost().name if "vhost" in call.path else None
    taking = definitions.Import(call.server, vhost)
    await taking.run(call.json())
    # RabbitMQ answers 204; what could not be had is worth a body.
    return Answer(200, {"imported": taking.taken, "not_imported": taking.problems}) if taking.problems else Answer(204)


async def _name(call: Call, views: Views) -> Answer:
    return Answer(body={"name": NODE})


async def _empty(call: Call, views: Views) -> Answer:
    return Answer(body=[])


async def _feature_flags(call: Call, views: Views) -> Answer:
    """What clients look for before they use it; NServiceBus does not start without `stream_queue`."""
    return Answer(
        body=[
            {
                "name": name,
                "state": "enabled",
                "stability": "stable",
                "provided_by": "rabbit",
                "desc": "",
                "doc_url": "",
            }
            for name in ("implicit_default_bindings", "quorum_queue", "stream_queue")
        ]
    )


async def _healthy(call: Call, views: Views) -> Answer:
    return Answer(body={"status": "ok"})


async def _alarms(call: Call, views: Views) -> Answer:
    if not call.server.intake.blocked:
        return Answer(body={"status": "ok"})
    return Answer(503, {"status": "failed", "reason": "publishers are blocked", "alarms": []})


async def _port(call: Call, views: Views) -> Answer:
    ports = sorted(port for _, _, port in views.ports)
    given = call.path["port"]
    if given.isdecimal() and int(given) in ports:
        return Answer(body={"status": "ok", "port": int(given)})
    missing = int(given) if given.isdecimal() else given
    return Answer(503, {"status": "failed", "reason": "No active listener", "missing": missing, "ports": ports})


async def _protocol(call: Call, views: Views) -> Answer:
    protocols = sorted({protocol for protocol, _, _ in views.ports})
    given = call.path["protocol"]
    if given in protocols:
        return Answer(body={"status": "ok", "protocol": given})
    return Answer(503, {"status": "failed", "reason": "No active listener", "missing": given, "protocols": protocols})


async def _expiration(call: Call, views: Views) -> Answer:
    """Whether a certificate ends within so many days, weeks, months or years."""
    days, within = _DAYS.get(call.path["unit"].rstrip("s")), call.path["within"]
    if days is None or not within.isdecimal() or len(within) > 5:
        raise bad_request("the time must be a number of days, weeks, months or years")
    if views.certificates is None:
        return Answer(body={"status": "ok"})
    ends = await asyncio.to_thread(views.certificates.expires)
    if ends > datetime.now(UTC) + timedelta(days=days * int(within)):
        return Answer(body={"status": "ok"})
    return Answer(503, {"status": "failed", "reason": "Certificates expiring", "expired": [ends.isoformat()]})


async def _metrics(call: Call, views: Views) -> Answer:
    call.require_monitoring()
    return Answer(text=await metrics.exposed(call.server, views))


async def _metrics_of_each(call: Call, views: Views) -> Answer:
    call.require_monitoring()
    return Answer(text=await metrics.exposed(call.server, views, each=True))


def _there(found: Any) -> Answer:
    if found is None:
        raise not_found()
    return Answer(body=found)


def _named(items: list[dict[str, Any]], name: str) -> Answer:
    return _there(next((item for item in items if item["name"] == name), None))


_ROUTES: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("GET", "/api/overview", _overview),
    ("GET", "/api/cluster-name", _name),
    ("GET", "/api/nodes", _nodes),
    ("GET", "/api/nodes/{name}", _nodes),
    ("GET", "/api/extensions", _empty),
    ("GET", "/api/feature-flags", _feature_flags),
    ("GET", "/api/whoami", _whoami),
    ("GET", "/api/definitions", _export),
    ("GET", "/api/definitions/{vhost}", _export),
    ("POST", "/api/definitions", _import),
    ("POST", "/api/definitions/{vhost}", _import),
    ("GET", "/api/connections", _connections),
    ("GET", "/api/vhosts/{vhost}/connections", _connections),
    ("GET", "/api/connections/{name}", _connection),
    ("DELETE", "/api/connections/{name}", changes.close_connection),
    ("GET", "/api/connections/username/{name}", _connections_of_user),
    ("DELETE", "/api/connections/username/{name}", changes.close_user_connections),
    ("GET", "/api/connections/{name}/channels", _channels_of_connection),
    ("GET", "/api/channels", _channels),
    ("GET", "/api/vhosts/{vhost}/channels", _channels),
    ("GET", "/api/channels/{name}", _channel),
    ("GET", "/api/consumers", _consumers),
    ("GET", "/api/consumers/{vhost}", _consumers),
    ("GET", "/api/exchanges", _exchanges),
    ("GET", "/api/exchanges/{vhost}", _exchanges),
    ("GET", "/api/exchanges/{vhost}/{name}", _exchange),
    ("PUT", "/api/exchanges/{vhost}/{name}", changes.put_exchange),
    ("DELETE", "/api/exchanges/{vhost}/{name}", changes.delete_exchange),
    ("POST", "/api/exchanges/{vhost}/{name}/publish", changes.publish),
    ("GET", "/api/exchanges/{vhost}/{name}/bindings/source", _bindings_from),
    ("GET", "/api/exchanges/{vhost}/{name}/bindings/destination", _bindings_to),
    ("GET", "/api/queues", _queues),
    ("GET", "/api/queues/{vhost}", _queues),
    ("GET", "/api/queues/{vhost}/{name}", _queue),
    ("PUT", "/api/queues/{vhost}/{name}", changes.put_queue),
    ("DELETE", "/api/queues/{vhost}/{name}", changes.delete_queue),
    ("DELETE", "/api/queues/{vhost}/{name}/contents", changes.purge_queue),
    ("POST", "/api/queues/{vhost}/{name}/get", changes.get_messages),
    ("GET", "/api/queues/{vhost}/{name}/bindings", _bindings_of_queue),
    ("GET", "/api/bindings", _bindings),
    ("GET", "/api/bindings/{vhost}", _bindings),
    ("GET", "/api/bindings/{vhost}/e/{source}/{kind}/{target}", changes.bindings_between),
    ("POST", "/api/bindings/{vhost}/e/{source}/{kind}/{target}", changes.post_binding),
    ("GET", "/api/bindings/{vhost}/e/{source}/{kind}/{target}/{properties}", changes.bindings_between),
    ("DELETE", "/api/bindings/{vhost}/e/{source}/{kind}/{target}/{properties}", changes.delete_binding),
    ("GET", "/api/vhosts", _vhosts),
    ("GET", "/api/vhosts/{vhost}", _vhost),
    ("PUT", "/api/vhosts/{vhost}", changes.put_vhost),
    ("DELETE", "/api/vhosts/{vhost}", changes.delete_vhost),
    ("GET", "/api/vhosts/{vhost}/permissions", _all_permissions),
    ("GET", "/api/users", _users),
    ("GET", "/api/users/without-permissions", _users_without_permissions),
    ("POST", "/api/users/bulk-delete", changes.delete_users),
    ("GET", "/api/users/{name}", _user),
    ("PUT", "/api/users/{name}", changes.put_user),
    ("DELETE", "/api/users/{name}", changes.delete_user),
    ("GET", "/api/users/{user}/permissions", _all_permissions),
    ("GET", "/api/permissions", _all_permissions),
    ("GET", "/api/permissions/{vhost}/{user}", _permission),
    ("PUT", "/api/permissions/{vhost}/{user}", changes.put_permission),
    ("DELETE", "/api/permissions/{vhost}/{user}", changes.delete_permission),
    ("GET", "/api/policies", _policies),
    ("GET", "/api/policies/{vhost}", _policies),
    ("GET", "/api/policies/{vhost}/{name}", _policy),
    ("PUT", "/api/policies/{vhost}/{name}", changes.put_policy),
    ("DELETE", "/api/policies/{vhost}/{name}", changes.delete_policy),
    ("GET", "/api/parameters", parameters.parameters),
    ("GET", "/api/parameters/{component}", parameters.parameters),
    ("GET", "/api/parameters/{component}/{vhost}", parameters.parameters),
    ("GET", "/api/parameters/{component}/{vhost}/{name}", parameters.parameter),
    ("PUT", "/api/parameters/{component}/{vhost}/{name}", parameters.put_parameter),
    ("DELETE", "/api/parameters/{component}/{vhost}/{name}", parameters.delete_parameter),
    ("GET", "/api/shovels", parameters.shovels),
    ("GET", "/api/shovels/{vhost}", parameters.shovels),
    ("GET", "/api/shovels/vhost/{vhost}/{name}", parameters.shovel),
    ("DELETE", "/api/shovels/vhost/{vhost}/{name}/restart", parameters.restart_shovel),
    ("GET", "/api/global-parameters", _empty),
    ("GET", "/api/operator-policies", _empty),
    ("GET", "/api/operator-policies/{vhost}", _empty),
    ("GET", "/api/topic-permissions", _empty),
    ("GET", "/api/vhost-limits", _empty),
    ("GET", "/api/vhost-limits/{vhost}", _empty),
    ("GET", "/api/federation-links", _empty),
    ("GET", "/api/federation-links/{vhost}", _empty),
    ("GET", "/api/user-limits", _empty),
    ("GET", "/api/aliveness-test/{vhost}", changes.aliveness),
    ("GET", "/api/healthchecks/node", _alarms),
    ("GET", "/api/healthchecks/node/{name}", _alarms),
    ("GET", "/api/health/checks/alarms", _alarms),
    ("GET", "/api/health/checks/local-alarms", _alarms),
    ("GET", "/api/health/checks/virtual-hosts", _healthy),
    ("GET", "/api/health/checks/node-is-quorum-critical", _healthy),
    ("GET", "/api/health/checks/node-is-mirror-sync-critical", _healthy),
    ("GET", "/api/health/checks/ready-to-serve-clients", _alarms),
    ("GET", "/api/health/checks/certificate-expiration/{within}/{unit}", _expiration),
    ("GET", "/api/health/checks/port-listener/{port}", _port),
    ("GET", "/api/health/checks/protocol-listener/{protocol}", _protocol),
    ("GET", "/metrics", _metrics),
    ("GET", "/metrics/detailed", _metrics),
    ("GET", "/metrics/per-object", _metrics_of_each),
)


class _Route(msgspec.Struct, frozen=True):
    method: str
    parts: tuple[str, ...]
    handler: Handler

    def fits(self, parts: list[str]) -> dict[str, str] | None:
        """The variable parts of an address of this route."""
        if len(parts) != len(self.parts):
            return None
        found = {}
        for own, given in zip(self.parts, parts, strict=True):
            if own.startswith("{"):
                found[own[1:-1]] = given
            elif own != given:
                return None
        return found


class ManagementApp:
    """The management API as an ASGI application, for any loop; `loop` is the AMQP server's."""

    def __init__(self, server: AmqpServer, views: Views, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._views = views
        self._loop = loop
        self._routes = [_Route(method, tuple(path.split("/")), handler) for method, path, handler in _ROUTES]
        self._hashing = asyncio.Semaphore(2)

    async def __call__(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive)
        except Refusal as refusal:
            answer = Answer(refusal.status, refusal.body)
        except Exception as error:
            # The loop may be closing, or this is a mistake; either way the next request finds out.
            self._server.mistakes.report("the management API", f"{scope['method']} {scope['path']}", error)
            answer = Answer(500, {"error": "internal_error", "reason": type(error).__name__})
        await _respond(answer, scope, send)

    async def _answer(self, scope: Mapping[str, Any], receive: _Receive) -> Answer:
        method: str = "GET" if scope["method"] == "HEAD" else scope["method"]
        raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").rstrip("/")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._check_origin(headers)
        user = await self._log_in(scope, headers)
        parts = [unquote(part) for part in raw.split("/")]
        handler, path = self._find(method, parts)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        call = Call(self._server, user, path, query, b"", headers.get("x-reason", ""))
        if method not in _SAFE:
            call.raw = await _body(receive)
        work = asyncio.run_coroutine_threadsafe(_carry_out(handler, call, self._views), self._loop)
        return await asyncio.wrap_future(work)

    def _find(self, method: str, parts: list[str]) -> tuple[Handler, dict[str, str]]:
        known = False
        for route in self._routes:
            path = route.fits(parts)
            if path is not None:
                known = True
                if route.method == method:
                    return route.handler, path
        if known:
            raise Refusal(405, "Method Not Allowed", "Method Not Allowed")
        raise not_found()

    async def _log_in(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> User:
        """Who calls: with the same users as AMQP, of whom one with a tag may do so."""
        users = self._server.users
        scheme, _, given = headers.get("authorization", "").partition(" ")
        name = password = ""
        if scheme.lower() == "basic":
            try:
                name, _, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                raise _refused("Login failed") from None
        if users is None:
            client = scope.get("client")
            if client is None or not is_loopback(client[0]):
                raise _refused("without users this server answers only its own machine")
            return User(name or "guest", everywhere=True)
        if not name:
            raise _refused("Login failed")
        async with self._hashing:
            user = await asyncio.to_thread(users.check, name, password)
        if user is None:
            _log.warning("login refused: user %r from %s, over HTTP", name[:64], (scope.get("client") or ["?"])[0])
            raise _refused("Login failed")
        if not user.tags:
            raise _refused("Not management user")
        return user

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Keep pages of other sites out: a browser would send them with the user's password, or to a server of this
        machine that asks for none."""
        host = headers.get("host", "")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Refusal(403, "forbidden", "requests from pages of other sites are refused")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise Refusal(403, "forbidden", "requests from pages of other sites are refused")
        if self._server.users is None and not _is_own(host):
            raise Refusal(403, "forbidden", f"without users this server is not known as {host[:100]!r}")


def _is_own(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def _refused(reason: str) -> Refusal:
    return Refusal(401, "not_authorized", reason)


async def _carry_out(handler: Handler, call: Call, views: Views) -> Answer:
    try:
        return await handler(call, views)
    except Failure as failure:
        if failure.code == ACCESS_REFUSED:
            raise Refusal(401, "not_authorized", readable(failure)) from None
        raise not_found() if failure.code == NOT_FOUND else bad_request(readable(failure)) from None
    except NotFound:
        raise not_found() from None
    except RemudaError as error:
        raise bad_request(str(error)) from None


async def _body(receive: _Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise bad_request("the request ended early")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _LARGEST:
            raise Refusal(413, "bad_request", f"the body is larger than {_LARGEST} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


async def _respond(answer: Answer, scope: Mapping[str, Any], send: _Send) -> None:
    kind = b"application/json" if answer.text is None else b"text/plain; version=0.0.4; charset=utf-8"
    if answer.text is not None:
        body = answer.text.encode()
    else:
        body = b"" if answer.body is None else msgspec.json.encode(plain(answer.body))
    headers = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-cache"), (b"vary", b"origin")]
    if body:
        headers.append((b"content-type", kind))
    if answer.location is not None:
        headers.append((b"location", answer.location.encode()))
    if answer.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="RabbitMQ Management"'))
    headers.append((b"x-content-type-options", b"nosniff"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def _live(receive: _Receive, send: _Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
