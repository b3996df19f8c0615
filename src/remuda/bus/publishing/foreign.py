"""Messages to and from other systems, with CAP's headers (M3)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from remuda.bus.publishing import headers as names
from remuda.bus.publishing.bodies import JSON
from remuda.bus.publishing.checks import check_target
from remuda.bus.publishing.system_queues import UNROUTED
from remuda.model.durations import SECOND
from remuda.model.errors import InvalidMessage
from remuda.model.message import Message
from remuda.model.messages import MAX_ID_BYTES

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_OWN_FIELDS: Final = (names.MESSAGE_ID, names.MESSAGE_NAME, names.SENT_TIME)
"""Headers that are fields of a message here."""


_DOTNET: Final = "%m/%d/%Y %H:%M:%S"


class Invalid(msgspec.Struct, frozen=True):
    """Something received that is not a message, and why."""

    reason: str
    headers: dict[str, str]
    body: bytes
    mime_type: str


def read(headers: Mapping[str, Any] | None, body: bytes, mime_type: str = JSON) -> Message | Invalid:
    """Read a message from another system. Header values may be of any type that its protocol has."""
    texts = {name: text for name, value in (headers or {}).items() if (text := _text(value)) is not None}
    problem = _problem(texts)
    if problem is not None:
        return Invalid(problem, texts, body, mime_type)
    sent = _time(texts.get(names.SENT_TIME))
    kept = {
        name: value
        for name, value in texts.items()
        if name not in _OWN_FIELDS or (name == names.SENT_TIME and sent is None)
    }
    return Message(
        texts[names.MESSAGE_NAME], body, id=texts[names.MESSAGE_ID], mime_type=mime_type, headers=kept, timestamp=sent
    )


def headers_of(message: Message, *, group: str | None = None, exception: str | None = None) -> dict[str, str]:
    """The headers with which to send a message to another system."""
    headers = {**message.headers, names.MESSAGE_ID: message.id, names.MESSAGE_NAME: message.name}
    sent = message.timestamp or message.created
    if sent:
        headers[names.SENT_TIME] = datetime.fromtimestamp(sent / SECOND, UTC).isoformat()
    if group is not None:
        headers[names.GROUP] = group
    if exception is not None:
        headers[names.EXCEPTION] = exception
    return headers


def take_in(bus: Bus, headers: Mapping[str, Any] | None, body: bytes, mime_type: str = JSON) -> str:
    """Publish what another system sent, and return its id. What is not a message is kept as invalid in `UNROUTED`."""
    found = read(headers, body, mime_type)
    if isinstance(found, Message):
        return bus.publish_messages([found])[0]
    invalid = Message(
        "remuda.foreign", body, mime_type=mime_type, headers={**found.headers, names.INVALID: found.reason}
    )
    return bus.broker.publish(invalid, queue=UNROUTED).id


def _problem(headers: Mapping[str, str]) -> str | None:
    missing = [name for name in names.REQUIRED if not headers.get(name)]
    if missing:
        return f"the header {' and '.join(missing)} is missing"
    if len(headers[names.MESSAGE_ID].encode()) > MAX_ID_BYTES:
        return f"{names.MESSAGE_ID} is longer than {MAX_ID_BYTES} bytes"
    try:
        check_target(names.MESSAGE_NAME, headers[names.MESSAGE_NAME])
    except InvalidMessage as error:
        return str(error).removesuffix("; nothing was stored")
    return None


def _text(value: Any) -> str | None:
    """A header's value as text; None stays None."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return repr(value)


def _time(text: str | None) -> int | None:
    """A time as other systems write it: ISO 8601, or as .NET does for its invariant culture."""
    moment = None
    for read in (datetime.fromisoformat, lambda written: datetime.strptime(written, _DOTNET)):
        try:
            moment = read(text or "")
            break
        except ValueError:
            continue
    if moment is None:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * SECOND)
