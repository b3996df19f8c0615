"""An exchange as AMQP declares it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from remuda.amqp.tables import Table
from remuda.model.routing import ROUTERS, ExchangeKind
from remuda.server.amqp.arguments import OWN, compare_arguments, kind_of
from remuda.server.amqp.failures import PRECONDITION_FAILED, Failure, inequivalent

TOPICS: Final = "remuda.topics"
"""Publishing here publishes to the topics of a bus; a queue bound here follows them by pattern."""
PREDECLARED: Final = {
    "amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers",
    "amq.match": "headers", "amq.rabbitmq.trace": "topic", TOPICS: "topic",
}  # fmt: skip
_AMQP: Final = ("direct", "fanout", "topic", "headers")
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
    def kind(self) -> ExchangeKind:
        return ExchangeKind(self.type.removeprefix(OWN))


def type_of(kind: ExchangeKind) -> str:
    """What clients call a kind of exchange."""
    return f"{OWN}{kind.value}" if kind in ROUTERS else kind.value


def check_type(name: str) -> None:
    if name not in _AMQP and name not in {type_of(kind) for kind in ROUTERS}:
        raise Failure(PRECONDITION_FAILED, f"unknown exchange type '{name}'")


def check_arguments(name: str, vhost: str, arguments: Table) -> None:
    alternate = arguments.get("alternate-exchange")
    if alternate is not None and not isinstance(alternate, str):
        raise Failure(
            PRECONDITION_FAILED,
            f"invalid type '{kind_of(alternate)}' for arg 'alternate-exchange' in exchange '{name}' in vhost '{vhost}'",
        )


def check_equivalent(name: str, vhost: str, asked: ExchangeDeclaration, standing: ExchangeDeclaration) -> None:
    for flag in ("type", "durable", "auto_delete", "internal"):
        received, current = getattr(asked, flag), getattr(standing, flag)
        if received != current:
            raise inequivalent(flag, "exchange", name, vhost, f"'{_said(received)}'", f"'{_said(current)}'")
    compare_arguments(asked.arguments, standing.arguments, ("alternate-exchange",), "exchange", name, vhost)


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
    return {
        name: as_text(value) if not name.startswith("x-") else value if isinstance(value, str) else as_text(value)
        for name, value in arguments.items()
        if not name.startswith(OWN)
    }


def as_text(value: Any) -> str | None:
    """A header's value as a string; None stays None."""
    if value is None or isinstance(value, str):
        return None if value is None else str(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, int | float):
        return str(int(value)) if isinstance(value, int) else repr(float(value))
    return msgspec.json.encode(_jsonable(value)).decode()


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {as_text(name): _jsonable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_jsonable(one) for one in value]
    return value if isinstance(value, bool) or value is None else as_text(value)


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
