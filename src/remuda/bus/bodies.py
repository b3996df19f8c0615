"""Python values as bodies and back (M1). The body is exactly what the encoding gives; `mime_type` says which."""

from __future__ import annotations

import sys
from typing import Any, Final, get_origin

import msgspec

from remuda.model.errors import InvalidMessage

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
RAW: Final = "application/octet-stream"

ENCODINGS: Final = {"json": JSON, "msgpack": MSGPACK, "raw": RAW}


class Undecodable(ValueError):
    """The body is not what the handler's annotation asks for."""


def encode(value: Any, encoding: str = "json") -> tuple[bytes, str]:
    """The body of a value, and its mime type. Bytes stay as they are."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), RAW
    if encoding not in ENCODINGS:
        raise InvalidMessage(f"no encoding {encoding!r}; there are {', '.join(ENCODINGS)}")
    if encoding == "raw":
        raise InvalidMessage(f"a raw body must be bytes, not {type(value).__name__}; nothing was stored")
    try:
        if _is_model(type(value)):
            value = value.model_dump(mode="json" if encoding == "json" else "python")
        body = msgspec.json.encode(value) if encoding == "json" else msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(
            f"a {type(value).__name__} cannot be encoded as {encoding}: {error}; nothing was stored. "
            "Publish bytes, or a value of plain types, a dataclass, a msgspec Struct or a pydantic model"
        ) from error
    return body, ENCODINGS[encoding]


def decode(body: bytes, mime_type: str, wanted: Any = Any) -> Any:
    """The value of a body, as the type wanted; raises `Undecodable`."""
    if wanted is bytes:
        return body
    base = mime_type.partition(";")[0].strip().lower()
    try:
        if wanted is str and (base == RAW or base.startswith("text/")):
            return body.decode()
        if _is_model(wanted):
            plain = msgspec.msgpack.decode(body) if base == MSGPACK else msgspec.json.decode(body)
            return wanted.model_validate(plain)
        if base == MSGPACK:
            return msgspec.msgpack.decode(body, type=wanted)
        if base == RAW and wanted is Any:
            return body
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        name = getattr(wanted, "__name__", str(wanted))
        raise Undecodable(f"the {base} body of {len(body)} bytes is no {name}: {error}") from error


def type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_model(kind: Any) -> bool:
    """Whether this is a pydantic model; pydantic is only looked at if the application has loaded it."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
