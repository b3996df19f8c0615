"""Talking to .NET CAP over RabbitMQ (M3): its headers, its exchange, its queues, exactly as CAP makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.codec.properties import PERSISTENT, Properties, encode_properties
from remuda.amqp.errors import Closed, ProtocolError
from remuda.model import cap_headers
from remuda.model.errors import InvalidMessage, InvalidOption

ID: Final = cap_headers.ID
NAME: Final = cap_headers.NAME
TYPE: Final = cap_headers.TYPE
SENT: Final = cap_headers.SENT
GROUP: Final = cap_headers.GROUP
CALLBACK: Final = cap_headers.CALLBACK
CORRELATION: Final = cap_headers.CORRELATION
SEQUENCE: Final = cap_headers.SEQUENCE
EXCEPTION: Final = cap_headers.EXCEPTION

DEFAULT_EXCHANGE: Final = "cap.default.router"
MESSAGE_TTL: Final = 864_000_000
"""Ten days in milliseconds. It is sent as a 32-bit number, as CAP does."""

_NOT_FOUND: Final = 404
_TIMES: Final = ("%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%Y-%m-%d %H:%M:%S")


class CapMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message with CAP's headers as strings. The body is the sender's own bytes; an empty one stands for null."""

    id: str
    name: str
    body: bytes = b""
    headers: dict[str, str] = {}

    @property
    def callback(self) -> str | None:
        """Where the sender wants the handler's answer, if it wants one."""
        return self.headers.get(CALLBACK) or None

    @property
    def correlation_sequence(self) -> int:
        text = self.headers.get(SEQUENCE, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0

    @property
    def sent(self) -> datetime | None:
        """When it was sent, if that can be read; times without a zone are UTC."""
        return time_of(self.headers.get(SENT, ""))


def exchange_name(version: str = "v1") -> str:
    """CAP's exchange; versions other than the first have one of their own."""
    return DEFAULT_EXCHANGE if version == "v1" else f"{DEFAULT_EXCHANGE}.{version}"


def queue_name(group: str, version: str = "v1") -> str:
    """The queue of a consumer group."""
    return f"{group}.{version}"


def read(delivery: Delivery) -> CapMessage:
    """A delivery as CAP understands it. Raises `InvalidMessage` if one of the two required headers is missing."""
    try:
        table = delivery.properties.headers or {}
    except ProtocolError as error:
        raise InvalidMessage(f"the headers cannot be read: {error.text}") from None
    headers = {name: _text(value) for name, value in table.items() if not isinstance(value, dict | list)}
    if (problem := problem_of(headers)) is not None:
        raise InvalidMessage(problem)
    return CapMessage(id=headers[ID], name=headers[NAME], body=delivery.body, headers=headers)


def problem_of(headers: Mapping[str, str]) -> str | None:
    """Why these are not the headers of a CAP message, if they are not."""
    missing = next((required for required in (ID, NAME) if not headers.get(required)), None)
    return None if missing is None else f"the header {missing} is missing; every CAP message has one"


def is_exchange(name: str) -> bool:
    """Whether it is CAP's exchange, of any version."""
    return name == DEFAULT_EXCHANGE or name.startswith(f"{DEFAULT_EXCHANGE}.")


def properties(
    message_id: str, name: str, headers: Mapping[str, str] | None = None, *, sent: datetime | None = None
) -> bytes:
    """Encoded properties of a message that CAP accepts: persistent, all header values strings, the id in the headers
    and as the message id."""
    table: dict[str, Any] = {ID: message_id, NAME: name, SENT: (sent or datetime.now(UTC)).isoformat()}
    for key, value in (headers or {}).items():
        if key not in (ID, NAME):
            table[key] = value
    for key, value in table.items():
        if not isinstance(value, str) or (key in (ID, NAME) and not value):
            raise InvalidMessage(f"the header {key} must be a string, since CAP reads only strings, not {value!r}")
    return encode_properties(Properties(headers=table, delivery_mode=PERSISTENT, message_id=message_id))


def bind(
    channel: Channel, group: str, names: Iterable[str], *, version: str = "v1", queue_type: str | None = None
) -> str:
    """Create exchange, queue and bindings as CAP would, so that nothing published before its service starts is lost.

    A queue that exists already is left as it is. Returns the queue's name.
    """
    if not isinstance(group, str) or not group:
        raise InvalidOption(f"group must be a string, not {group!r}")
    if isinstance(names, str):
        raise InvalidOption("names must be a list of names, not a single string; write [name]")
    exchange, queue = exchange_name(version), queue_name(group, version)
    channel.declare_exchange(exchange, "topic", durable=True)
    try:
        channel.declare_queue(queue, passive=True)
    except Closed as error:
        if error.code != _NOT_FOUND:
            raise
        kind = {} if queue_type is None else {"x-queue-type": queue_type}
        channel.declare_queue(queue, arguments={"x-message-ttl": MESSAGE_TTL, **kind})
    for name in names:
        channel.bind_queue(queue, exchange, name)
    return queue


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def time_of(text: str) -> datetime | None:
    """A time as CAP writes it; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        for form in _TIMES:
            try:
                found = datetime.strptime(text, form)
                break
            except ValueError:
                continue
        else:
            return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
