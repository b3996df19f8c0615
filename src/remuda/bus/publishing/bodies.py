"""Encodes Python values as bodies, and decodes them (M1). `mime_type` names the encoding."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.values.texts import shown

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
RAW: Final = "application/octet-stream"

ENCODINGS: Final = {"json": JSON, "msgpack": MSGPACK, "raw": RAW}
_MSGPACK_NAMES: Final = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")


class Undecodable(ValueError):
    """The body is not what the handler's annotation asks for."""


def encode(value: Any, encoding: str = "json") -> tuple[bytes, str]:
    """Encode a value; returns the body and its mime type. Bytes stay as they are."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), RAW
    check_encoding(encoding)
    if encoding == "raw":
        raise InvalidMessage(f"a raw body must be bytes, not {type(value).__name__}; nothing was stored")
    try:
        if encoding == "json":
            body = _write_json(value)
            if b"[" in body and _has_set(value):
                body = _write_sorted_json(value)
            if b"null" in body and _has_nan(value):
                raise ValueError("NaN and infinity are not JSON; use null, a string, or encoding='msgpack'")
        else:
            body = _write_msgpack(value)
            if _has_set(value):
                body = _write_sorted_msgpack(value)
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise InvalidMessage(
            f"{_article(type(value).__name__)} cannot be encoded as {encoding}: {error}; nothing was stored. "
            "Publish bytes, or a value of plain types, a dataclass, a msgspec Struct or a pydantic model"
        ) from error
    return body, ENCODINGS[encoding]


_INFINITE: Final = (float("inf"), float("-inf"))


_LEAVES: Final[frozenset[type]] = frozenset({int, str, bool, bytes, type(None)})
_PLAIN_LEAVES: Final = _LEAVES | {float}


def _has_nan(value: Any) -> bool:
    """Whether the value holds a number that JSON would turn into null."""
    return any(isinstance(one, float) and (one != one or one in _INFINITE) for one in _inside(value, _LEAVES))


def _has_set(value: Any) -> bool:
    return any(isinstance(one, set | frozenset) for one in _inside(value, _PLAIN_LEAVES))


def _inside(value: Any, without: frozenset[type]) -> Iterator[Any]:
    """A value and all that it holds, but for collections of these types alone."""
    todo = [value]
    while todo:
        one = todo.pop()
        yield one
        held: Collection[Any] = ()
        if isinstance(one, dict):
            held = one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            held = one
        elif isinstance(one, msgspec.Struct) or hasattr(one, "__dataclass_fields__"):
            fields = getattr(one, "__struct_fields__", ()) or one.__dataclass_fields__
            held = [getattr(one, name, None) for name in fields]
        if not without.issuperset(map(type, held)):
            todo += held


def decode(body: bytes, mime_type: str, wanted: Any = Any) -> Any:
    """Decode a body to the wanted type; raises `Undecodable`."""
    if wanted is bytes:
        return body
    try:
        return _reader(mime_type, wanted)(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        name, base = getattr(wanted, "__name__", str(wanted)), _base(mime_type)
        raise Undecodable(
            f"the {base or 'untyped'} body of {len(body)} bytes is not {_article(name)}: {error}"
        ) from error


@lru_cache(maxsize=1024)
def _reader(mime_type: str, wanted: Any) -> Callable[[bytes], Any]:
    """The function that decodes such a body."""
    base, plain = _base(mime_type), without_extras(wanted)
    is_json = base == JSON or base.endswith("+json")
    if plain is not wanted and (plain is bytes or (plain is str and not is_json and base not in _MSGPACK_NAMES)):
        read = _reader(mime_type, plain) if plain is str else bytes
        return lambda body: msgspec.convert(read(body), wanted)
    if is_msgpack(mime_type):
        return _decoder(msgspec.msgpack.Decoder, wanted)
    if (wanted is str and not is_json) or (wanted is Any and base.startswith("text/")):
        return bytes.decode
    if wanted is Any and not is_json:
        return bytes
    if _is_model(wanted):
        return wanted.model_validate_json  # type: ignore[no-any-return]
    return _decoder(msgspec.json.Decoder, wanted)


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"


def is_msgpack(mime_type: str) -> bool:
    return _base(mime_type) in _MSGPACK_NAMES


def _base(mime_type: str) -> str:
    return mime_type.partition(";")[0].strip().lower()


def check_encoding(encoding: str) -> None:
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise InvalidOption(f"no encoding {shown(encoding)}; there are {', '.join(ENCODINGS)}")


def without_extras(wanted: Any) -> Any:
    """The type inside `Annotated`, or the type itself."""
    return get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted


def check_wanted(wanted: Any) -> None:
    """Raise `TypeError` for an annotation that no body could be decoded to."""
    if wanted is not bytes:
        _decoder(msgspec.json.Decoder, wanted)


def read_wanted(name: str, wanted: Any) -> Any:
    """A type that a result can be decoded to, or an error that names the argument."""
    try:
        return _known_wanted(wanted)
    except Exception as error:  # msgspec shows the value in its message: that may fail in any way, or be long
        why = str(error)[:200]
        raise InvalidOption(f"{name} must be a type, like int or list[str], not {shown(wanted)}: {why}") from None


@lru_cache(maxsize=1024)
def _known_wanted(wanted: Any) -> Any:
    check_wanted(wanted)
    return wanted


def type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _decoder(kind: Any, wanted: Any) -> Callable[[bytes], Any]:
    return kind(wanted, dec_hook=_from_plain).decode  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if _is_model(type(value)) else _base_value(value)


def _plain_binary(value: Any) -> Any:
    return value.model_dump(mode="python") if _is_model(type(value)) else _base_value(value)


def _base_value(value: Any) -> Any:
    """The plain value of a type derived from strings or numbers, such as NumPy's."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if hasattr(type(value), "__index__"):
        return operator.index(value)
    raise NotImplementedError(f"{type(value).__name__} is unknown")


def _from_plain(kind: Any, value: Any) -> Any:
    """Create a value of a type that msgspec does not know."""
    if _is_model(kind):
        return kind.model_validate(value)
    raise msgspec.ValidationError(f"a {type(value).__name__} cannot become a {getattr(kind, '__name__', kind)}")


def _is_model(kind: Any) -> bool:
    """Whether this is a pydantic model; pydantic is only looked at if the application has loaded it."""
    pydantic = sys.modules.get("pydantic")
    return (
        pydantic is not None
        and get_origin(kind) is None
        and isinstance(kind, type)
        and issubclass(kind, pydantic.BaseModel)
    )


_write_json: Final = msgspec.json.Encoder(enc_hook=_plain).encode
_write_msgpack: Final = msgspec.msgpack.Encoder(enc_hook=_plain_binary).encode
# A set has another order in every process: unsorted, the same set would look changed, and get another hash.
_write_sorted_json: Final = msgspec.json.Encoder(enc_hook=_plain, order="deterministic").encode
_write_sorted_msgpack: Final = msgspec.msgpack.Encoder(enc_hook=_plain_binary, order="deterministic").encode


def return_type(function: Callable[..., Any], name: str = "return") -> Any:
    """The annotation of what a function returns, or of a parameter, as a type that bodies are decoded to."""
    try:
        found = get_type_hints(function, include_extras=True).get(name, Any)
    except Exception:
        return Any
    if found is None or found is type(None) or found is object:
        return Any
    try:
        check_wanted(found)
    except TypeError:
        return Any
    return found
