"""An exchange as AMQP declares it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from remuda.amqp.codec.tables import Scaled, Table
from remuda.model.queues.routing import ROUTERS, ExchangeKind
from remuda.server.amqp.declarations.arguments import OWN, compare_arguments, kind_of
from remuda.server.amqp.protocol.failures import NOT_IMPLEMENTED, PRECONDITION_FAILED, Failure, inequivalent

TOPICS: Final = "remuda.topics"
"""Publishing here publishes to the topics of a bus; a queue bound here follows them by pattern."""
PREDECLARED: Final = {
    "amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers",
    "amq.match": "headers", "amq.rabbitmq.trace": "topic", TOPICS: "topic",
}  # fmt: skip
DELAYED: Final = "x-delayed-message"
DELAYED_TYPE: Final = "x-delayed-type"
HASH_HEADER: Final = "hash-header"
TYPES: Final = {
    "direct": "the routing key is the binding's", "fanout": "every binding", "topic": "the binding's pattern matches",
    "headers": "the binding's arguments match the message's headers",
    "x-consistent-hash": "one binding, the same for each routing key or value of hash-header",
    "x-random": "any one binding",
    DELAYED: "as x-delayed-type does, after the message's x-delay",
}  # fmt: skip
"""Types of exchanges, for people."""
_KINDS: Final = {"x-consistent-hash": ExchangeKind.CONSISTENT_HASH, "x-random": ExchangeKind.RANDOM}
_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


class ExchangeDeclaration(msgspec.Struct, frozen=True, array_like=True):
    """How an exchange was declared."""

    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = {}

    @property
    def alternate(self) -> str | None:
        found = self.arguments.get("alternate-exchange")
        return str(found) if isinstance(found, str) else None

    @property
    def delays(self) -> bool:
        """Whether messages wait as long as their header `x-delay` says."""
        return self.type == DELAYED

    @property
    def kind(self) -> ExchangeKind:
        name = str(self.arguments.get(DELAYED_TYPE)) if self.delays else self.type
        return ExchangeKind(_KINDS.get(name, name.removeprefix(OWN)))


def type_of(kind: ExchangeKind) -> str:
    """What clients call a kind of exchange."""
    plugin = next((name for name, one in _KINDS.items() if one is kind), kind.value)
    return f"{OWN}{kind.value}" if kind in ROUTERS else plugin


def check_type(name: str) -> None:
    if name not in TYPES and name not in {type_of(kind) for kind in ROUTERS}:
        raise Failure(PRECONDITION_FAILED, f"unknown exchange type '{name}'")


def check_arguments(name: str, vhost: str, kind: str, arguments: Table) -> None:
    if kind == DELAYED and arguments.get(DELAYED_TYPE) not in set(TYPES) - {DELAYED}:
        text = "Invalid argument, 'x-delayed-type' must be an existing exchange type"
        raise Failure(PRECONDITION_FAILED, f"{text} (exchange '{name}' in vhost '{vhost}')")
    if kind == "x-consistent-hash" and "hash-property" in arguments:
        text = f"hash-property of exchange '{name}' in vhost '{vhost}'; here the routing key or a header is hashed"
        raise Failure(NOT_IMPLEMENTED, text, hard=False)
    for argument in ("alternate-exchange", HASH_HEADER):
        value = arguments.get(argument)
        if value is not None and not isinstance(value, str):
            raise Failure(
                PRECONDITION_FAILED,
                f"invalid type '{kind_of(value)}' for arg '{argument}' in exchange '{name}' in vhost '{vhost}'",
            )


def check_equivalent(name: str, vhost: str, asked: ExchangeDeclaration, standing: ExchangeDeclaration) -> None:
    for flag in ("type", "durable", "auto_delete", "internal"):
        received, current = getattr(asked, flag), getattr(standing, flag)
        if received != current:
            raise inequivalent(flag, "exchange", name, vhost, f"'{_said(received)}'", f"'{_said(current)}'")
    compare_arguments(
        asked.arguments, standing.arguments, ("alternate-exchange", DELAYED_TYPE, HASH_HEADER), "exchange", name, vhost
    )


def check_binding(source: ExchangeDeclaration, arguments: Table) -> None:
    """Refuse a binding that a headers exchange could not match."""
    how = arguments.get("x-match", "all")
    if source.type != "headers" or how in _MATCHES:
        return
    if isinstance(how, str):
        text = f'Invalid x-match field value <<"{how}">>; expected all, any, all-with-x, or any-with-x'
    else:
        text = f"Invalid x-match field type {kind_of(how)} (value {how}); expected longstr"
    raise Failure(PRECONDITION_FAILED, text)


def binding_arguments(arguments: Table) -> dict[str, Any]:
    """A binding's arguments as strings, since the broker compares them with headers, which are strings there."""
    return {storable(name): as_text(value) for name, value in arguments.items() if not name.startswith(OWN)}


def storable(text: str) -> str:
    """A text that can be written as UTF-8: bytes that are not UTF-8 are shown as such."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def without_types(table: Table) -> Table:
    """A table without the types its values had on the wire, so that it can be stored and compared."""
    return {storable(name): _without_type(value) for name, value in table.items()}


def _without_type(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return without_types(value)
    if isinstance(value, Scaled):
        return value.text
    if isinstance(value, list):
        return [_without_type(one) for one in value]
    return bytes(value)


def as_text(value: Any) -> str | None:
    """A header's value as a string; None stays None."""
    if value is None or isinstance(value, str):
        return None if value is None else storable(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, int | float):
        return str(int(value)) if isinstance(value, int) else repr(float(value))
    if isinstance(value, Scaled):
        return value.text
    return msgspec.json.encode(_jsonable(value)).decode()


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {as_text(name): _jsonable(one) for name, one in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, Scaled):
        return [_jsonable(one) for one in value]
    return value if isinstance(value, bool) or value is None else as_text(value)


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
