"""The words of a body. Both indexes are given the words found here, so that both find the same messages.

A word is a run of letters and digits, in any case and without accents; a Chinese, Japanese or Korean character is a
word by itself. Of a body the first 64 KiB are indexed (of a larger one in msgpack, nothing), and of a word the first
256 characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec

MAX_TEXT: Final = 64 * 1024
MAX_WORD: Final = 255
"""The longest word that can be searched for."""
_KEPT: Final = MAX_WORD + 1

_TEXTUAL: Final = frozenset(
    "application/xml application/javascript application/yaml application/x-yaml application/toml application/sql "
    "application/x-ndjson application/x-www-form-urlencoded application/graphql".split()
)
_MSGPACK: Final = frozenset({"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"})
_CHARSETS: Final = re.compile(r"utf-?(8|16|32)|(us-)?ascii|iso-?8859-\d{1,2}|latin-?1|windows-125\d|cp125\d")
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([\w.:-]+)", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W_]+")
_BREAKS: Final = re.compile(r"[\W_]")
_IDEOGRAPHS: Final = re.compile(
    r"([\u1100-\u11ff\u2e80-\u2fdf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)


def text_of(body: bytes, mime_type: str) -> str:
    """What can be searched of a body: text, and the values of JSON and msgpack; nothing of other types."""
    return _reader(mime_type)(body)


@lru_cache(maxsize=1024)
def _reader(mime_type: str) -> Callable[[bytes], str]:
    """How bodies of a type are read. Messages come by the thousand, of few types."""
    base, _, parameters = mime_type.partition(";")
    base = base.strip().lower()
    if base == "application/json" or base.endswith("+json"):
        return _json
    if base in _MSGPACK:
        return _msgpack
    if base.startswith("text/") or base in _TEXTUAL or base.endswith("+xml"):
        return lambda body: _decoded(body, parameters)
    return lambda body: ""


def _json(body: bytes) -> str:
    return _values(msgspec.json.decode, body) if len(body) <= MAX_TEXT else _decoded(body, "")


def _msgpack(body: bytes) -> str:
    return _values(msgspec.msgpack.decode, body) if len(body) <= MAX_TEXT else ""


def searchable(text: str) -> str:
    """The text with its words set apart and in the form in which they are compared."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", text.casefold()).casefold()
    plain = "".join(char for char in plain if not unicodedata.combining(char))
    return _BREAKS.sub(" ", _IDEOGRAPHS.sub(r" \1 ", plain))


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    return split(searchable(text))


def split(plain: str) -> list[str]:
    """The words of a text that `searchable` returned."""
    return [word[:_KEPT] for word in _WORD.findall(plain)]


def _decoded(body: bytes, parameters: str) -> str:
    named = _CHARSET.search(parameters) if parameters else None
    charset = named[1].lower() if named and _CHARSETS.fullmatch(named[1].lower()) else "utf-8"
    try:
        return body[:MAX_TEXT].decode(charset, "replace")
    except LookupError:
        return body[:MAX_TEXT].decode("utf-8", "replace")


def _values(decode: Any, body: bytes) -> str:
    try:
        value = decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _decoded(body, "") if decode is msgspec.json.decode else ""
    found: list[str] = []
    waiting = [iter((value,))]
    while waiting:
        for value in waiting[-1]:
            kind = type(value)
            if kind is str:
                found.append(value)
            elif kind is int or kind is float:
                found.append(str(value))
            elif kind is dict:
                waiting.append(iter(value.values()))
                break
            elif kind is list:
                waiting.append(iter(value))
                break
        else:
            waiting.pop()
    text = " ".join(found)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
