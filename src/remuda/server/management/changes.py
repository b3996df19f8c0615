"""What the management API changes: queues, exchanges, bindings, messages, policies, vhosts, users and permissions."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from typing import Any, Final

from remuda.amqp.codec.methods import (
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
)
from remuda.amqp.codec.properties import Properties, decode_properties, encode_properties
from remuda.amqp.codec.tables import Scaled, encode_table
from remuda.amqp.errors import ProtocolError
from remuda.model.errors import NotFound
from remuda.server.amqp.declarations.policies import read_policy
from remuda.server.amqp.local_session import LocalSession
from remuda.server.amqp.messages.consumers import AGAIN, DONE, REJECTED
from remuda.server.amqp.messages.outbound import exchange_of, properties_of
from remuda.server.amqp.protocol.failures import NOT_FOUND, PRECONDITION_FAILED, Failure
from remuda.server.management import calls
from remuda.server.management.calls import CREATED, Answer, Call, bad_request, granted, not_found, tags_of, users_of
from remuda.server.management.views import Views
from remuda.server.users import change_user, check_vhost, from_rabbitmq, hashed, remove_user

_MOST: Final = 10_000
"""More messages than one request gets."""
_FIELDS: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip


def _session(call: Call) -> LocalSession:
    return LocalSession(call.server, call.user, call.entered())


def flag_of(given: dict[str, Any], name: str) -> bool:
    """A flag, which rabbitmqadmin sends as text."""
    value = given.get(name, False)
    if value in (True, "true"):
        return True
    if value in (False, "false", None):
        return False
    raise bad_request(f"{name} must be true or false")


def table_of(given: dict[str, Any], name: str = "arguments") -> dict[str, Any]:
    value = given.get(name) or {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object")
    encode_table(value)  # what no client could declare is refused in the same words
    return value


def text_of(given: dict[str, Any], name: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a text")
    return value


# Queues and their messages


def queue_of_json(name: str, given: dict[str, Any]) -> QueueDeclare:
    durable, auto_delete = flag_of(given, "durable"), flag_of(given, "auto_delete")
    return QueueDeclare(0, name, durable=durable, auto_delete=auto_delete, arguments=table_of(given))


async def put_queue(call: Call, views: Views) -> Answer:
    given, session = call.json(), _session(call)
    name = call.path["name"]
    before = await call.server.topology.find(call.vhost().queue(name))
    await session.ask(queue_of_json(name, given))
    return CREATED if before is None else calls.DONE


async def delete_queue(call: Call, views: Views) -> Answer:
    await _found(call, views)
    unused, empty = (call.query.get(name) == "true" for name in ("if-unused", "if-empty"))
    await _session(call).ask(QueueDelete(0, call.path["name"], unused, empty, False))
    return calls.DONE


async def purge_queue(call: Call, views: Views) -> Answer:
    await _found(call, views)
    await _session(call).ask(QueuePurge(0, call.path["name"], False))
    return calls.DONE


async def _found(call: Call, views: Views) -> str:
    full = call.entered().queue(call.path["name"])
    if await call.server.topology.find(full) is None:
        raise not_found()
    return full


async def get_messages(call: Call, views: Views) -> Answer:
    given, session = call.json(), _session(call)
    full = await _found(call, views)
    session.check("read", "queue", call.path["name"])
    try:
        wanted = min(int(given.get("count", 1)), _MOST)
        truncate = int(given["truncate"]) if "truncate" in given else None
    except (TypeError, ValueError):
        raise bad_request("count and truncate must be whole numbers") from None
    mode = given.get("ackmode", "ack_requeue_true")
    try:
        settlement = {
            "ack_requeue_true": AGAIN, "reject_requeue_true": AGAIN, "ack_requeue_false": DONE,
            "reject_requeue_false": REJECTED,
        }[mode]  # fmt: skip
    except (KeyError, TypeError):
        raise bad_request(f"ackmode cannot be {mode!r}") from None
    encoding = given.get("encoding", "auto")
    if encoding not in ("auto", "base64"):
        raise bad_request("encoding must be auto or base64")
    broker = call.server.broker
    found: list[dict[str, Any]] = []
    while len(found) < wanted:
        delivery = await broker.pull(full, wanted - len(found), consumer="management")
        if delivery is None:
            break
        left = sum(delivery.remaining)
        for row, message in enumerate(delivery):
            payload, how = _payload(message.body[:truncate], encoding)
            found.append(
                {
                    "payload_bytes": len(message.body), "redelivered": delivery.redelivered[row],
                    "exchange": exchange_of(message.headers), "routing_key": message.name,
                    "message_count": left + len(delivery) - row - 1, "properties": _readable(properties_of(message)),
                    "payload": payload, "payload_encoding": how,
                }
            )  # fmt: skip
        await delivery.answer(settlement)
        if settlement is AGAIN:
            break  # they wait at the front again
    return Answer(body=found)


def _payload(body: bytes, encoding: str) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), "base64"


def _readable(raw: bytes) -> dict[str, Any]:
    """Properties as JSON: only those that the message has."""
    try:
        properties = decode_properties(raw)
    except (ProtocolError, IndexError):
        return {}
    return {name: value for name in _FIELDS if (value := plain(getattr(properties, name))) is not None}


def plain(value: Any) -> Any:
    """A value of a table as JSON can have it."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, Scaled):
        return value.text
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bool) or value is None:
        return value
    return int(value) if isinstance(value, int) else float(value)


async def publish(call: Call, views: Views) -> Answer:
    given, session = call.json(), _session(call)
    payload, key = given.get("payload"), given.get("routing_key", "")
    if not isinstance(payload, str) or not isinstance(key, str):
        raise bad_request("key_missing: payload and routing_key must be texts")
    encoding = given.get("payload_encoding", "string")
    try:
        body = payload.encode() if encoding == "string" else base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("the payload is not base64") from None
    if encoding not in ("string", "base64"):
        raise bad_request(f"payload_encoding cannot be {encoding!r}")
    properties = given.get("properties") or {}
    if not isinstance(properties, dict) or set(properties) - set(_FIELDS):
        raise bad_request(f"properties may have {', '.join(_FIELDS)}")
    try:
        raw = encode_properties(Properties(**properties))
    except (TypeError, AttributeError, ValueError) as error:
        raise bad_request(f"the properties cannot be written: {error}") from None
    return Answer(body={"routed": await session.publish(call.path["name"], key, raw, body)})


# Exchanges and bindings


def exchange_of_json(name: str, given: dict[str, Any]) -> ExchangeDeclare:
    durable, auto_delete, internal = (flag_of(given, flag) for flag in ("durable", "auto_delete", "internal"))
    kind, arguments = text_of(given, "type"), table_of(given)
    return ExchangeDeclare(
        0, name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
    )


async def put_exchange(call: Call, views: Views) -> Answer:
    given, session = call.json(), _session(call)
    name = call.path["name"]
    before = await call.server.topology.exchange(call.vhost().exchange(name))
    await session.ask(exchange_of_json(name, {"type": "direct", **given}))
    return CREATED if before is None else calls.DONE


async def delete_exchange(call: Call, views: Views) -> Answer:
    if await call.server.topology.exchange(call.entered().exchange(call.path["name"])) is None:
        raise not_found()
    await _session(call).ask(ExchangeDelete(0, call.path["name"], call.query.get("if-unused") == "true", False))
    return calls.DONE


async def post_binding(call: Call, views: Views) -> Answer:
    given, session = call.json(), _session(call)
    key, arguments = str(given.get("routing_key") or ""), table_of(given)
    await bind(session, call.path["source"], call.path["kind"], call.path["target"], key, arguments)
    target = await _bindings_between(call, views)
    found = next((one for one in target if one["routing_key"] == key), {"properties_key": "~"})
    return Answer(201, location=f"{call.path['target']}/{found['properties_key']}")


async def bind(session: LocalSession, source: str, kind: str, target: str, key: str, arguments: dict[str, Any]) -> None:
    if kind in ("q", "queue"):
        await session.ask(QueueBind(0, target, source, key, False, arguments))
    elif kind in ("e", "exchange"):
        await session.ask(ExchangeBind(0, target, source, key, False, arguments))
    else:
        raise not_found()


async def _bindings_between(call: Call, views: Views) -> list[dict[str, Any]]:
    wanted = {"q": "queue", "e": "exchange"}.get(call.path["kind"])
    source = "" if call.path["source"] == "amq.default" else call.path["source"]
    return [
        one for one in await views.bindings([call.vhost()])
        if (one["source"], one["destination_type"], one["destination"]) == (source, wanted, call.path["target"])
    ]  # fmt: skip


async def bindings_between(call: Call, views: Views) -> Answer:
    found = await _bindings_between(call, views)
    if "properties" in call.path:
        one = next((one for one in found if _is_key(one["properties_key"], call.path["properties"])), None)
        if one is None:
            raise not_found()
        return Answer(body=one)
    return Answer(body=found)


def _is_key(key: str, given: str) -> bool:
    """The address was decoded once; the key is encoded itself."""
    from urllib.parse import unquote

    return given in (key, unquote(key))


async def delete_binding(call: Call, views: Views) -> Answer:
    one: dict[str, Any] = (await bindings_between(call, views)).body
    session = _session(call)
    if one["destination_type"] == "queue":
        await session.ask(QueueUnbind(0, one["destination"], one["source"], one["routing_key"], one["arguments"]))
    else:
        await session.ask(
            ExchangeUnbind(0, one["destination"], one["source"], one["routing_key"], False, one["arguments"])
        )
    return calls.DONE


# Connections


def _closing(call: Call) -> str:
    """What a client is told that is disconnected from here."""
    reason = "".join(sign for sign in call.reason if sign.isprintable())[:100]
    return f"broker forced connection closure: {reason or 'Closed via management plugin'}"


async def close_connection(call: Call, views: Views) -> Answer:
    for client in views.clients():
        if client.name == call.path["name"] and call.sees(client.session.vhost.name):
            if not call.is_administrator and client.session.user.name != call.user.name:
                call.require_administrator()
            client.shut_down(_closing(call))
            return calls.DONE
    raise not_found()


async def close_user_connections(call: Call, views: Views) -> Answer:
    call.require_administrator()
    for client in views.clients():
        if client.session.user.name == call.path["name"]:
            client.shut_down(_closing(call))
    return calls.DONE


# Policies


async def put_policy(call: Call, views: Views) -> Answer:
    call.require_policymaker()
    vhost, name = call.entered(), call.path["name"]
    policies = dict(call.server.topology.policies.get(vhost.name, {}))
    new = name not in policies
    policies[name] = read_policy(name, call.json())
    await call.server.set_policies(vhost, policies)
    return CREATED if new else calls.DONE


async def delete_policy(call: Call, views: Views) -> Answer:
    call.require_policymaker()
    vhost = call.entered()
    policies = dict(call.server.topology.policies.get(vhost.name, {}))
    if policies.pop(call.path["name"], None) is None:
        raise not_found()
    await call.server.set_policies(vhost, policies)
    return calls.DONE


# Vhosts, users and permissions


async def put_vhost(call: Call, views: Views) -> Answer:
    call.require_administrator()
    name = check_vhost(call.path["vhost"])
    new = name not in call.server.topology.vhosts
    await call.server.topology.add_vhost(name)
    users = call.server.users
    if users is not None and users.path is not None and new and not call.user.enters(name):
        # As in RabbitMQ, who makes a vhost may use it.
        await _change(call, call.user.name, vhosts={name: {"configure": ".*", "write": ".*", "read": ".*"}})
    return CREATED if new else calls.DONE


async def delete_vhost(call: Call, views: Views) -> Answer:
    call.require_administrator()
    name = call.vhost().name
    if name == "/":
        raise bad_request("the vhost / is the broker's own and cannot be deleted")
    for user in call.users:
        if name in user.vhosts:
            await _change(call, user.name, vhosts={name: None})
    for client in views.clients():
        if client.session.vhost.name == name:
            client.shut_down(f"broker forced connection closure: vhost '{name}' is deleted")
    await call.server.shovels.remove_vhost(name)
    await call.server.topology.remove_vhost(name)
    return calls.DONE


async def _change(call: Call, name: str, change: Callable[..., Any] = change_user, **changes: Any) -> Any:
    """Change the users file, and have it count at once."""
    users = users_of(call.server)
    done = await asyncio.to_thread(change, users.path, name, **changes)
    await asyncio.to_thread(users.refresh, force=True)
    await call.server.apply_users(users)
    return done


def password_of(given: dict[str, Any]) -> str:
    """A user's password as it is kept, from a password or a hash of RabbitMQ's."""
    if isinstance(given.get("password"), str) and given["password"]:
        return hashed(given["password"])
    algorithm = given.get("hashing_algorithm") or "rabbit_password_hashing_sha256"
    return from_rabbitmq(str(given.get("password_hash") or ""), str(algorithm))


async def put_user(call: Call, views: Views) -> Answer:
    call.require_administrator()
    users_of(call.server)
    given = call.json()
    if "tags" not in given:
        raise bad_request("key_missing: tags")
    tags = tags_of(given["tags"])
    kept = await asyncio.to_thread(password_of, given)
    return CREATED if await _change(call, call.path["name"], kept=kept, tags=tags) else calls.DONE


async def delete_user(call: Call, views: Views) -> Answer:
    call.require_administrator()
    if users_of(call.server).find(call.path["name"]) is None:
        raise not_found()
    await _change(call, call.path["name"], remove_user)
    return calls.DONE


async def delete_users(call: Call, views: Views) -> Answer:
    call.require_administrator()
    names = call.json().get("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users must be a list of names")
    known = users_of(call.server)
    for name in names:
        if known.find(name) is not None:  # as in RabbitMQ, one that is not there is no error
            await _change(call, name, remove_user)
    return calls.DONE


async def put_permission(call: Call, views: Views) -> Answer:
    call.require_administrator()
    vhost, name = call.vhost().name, call.path["user"]
    user = users_of(call.server).find(name)
    if user is None:
        raise bad_request(f"no such user: {name}")
    await _change(call, name, vhosts={vhost: granted(call.json())})
    return calls.DONE if user.enters(vhost) else CREATED


async def delete_permission(call: Call, views: Views) -> Answer:
    call.require_administrator()
    vhost, name = call.vhost().name, call.path["user"]
    user = call.find_user(name)
    if user is None or not user.enters(vhost):
        raise not_found()
    await _change(call, name, vhosts={vhost: None})
    return calls.DONE


# Health


async def aliveness(call: Call, views: Views) -> Answer:
    """Declare a queue, publish to it and get the message back."""
    session, vhost = _session(call), call.vhost()
    name = "aliveness-test"
    await session.ask(QueueDeclare(0, name, False, False, False, False, False, {}))
    if not await session.publish("", name, encode_properties(Properties()), b"test_message"):
        raise Failure(PRECONDITION_FAILED, "the message was not routed")
    try:
        delivery = await call.server.broker.pull(vhost.queue(name), consumer="management")
    except NotFound:
        raise Failure(NOT_FOUND, "the queue of the test is gone") from None
    if delivery is not None:
        await delivery.ack()
    return Answer(body={"status": "ok"})
