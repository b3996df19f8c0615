"""Checks of topics, headers and times, for published messages and handlers' replies alike."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache

from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.topics import WILDCARDS, check_topic
from remuda.model.values.durations import SECOND
from remuda.model.values.texts import shown

Moment = int | datetime
"""Microseconds since the epoch, or a datetime with a time zone."""


def check_target(what: str, topic: str) -> None:
    """Raise `InvalidMessage` for a topic to which nothing can be published."""
    if type(topic) is not str and not isinstance(topic, str):
        raise InvalidMessage(f"a {what} must be a string, not {shown(topic)}; nothing was stored")
    _check_text(what, topic)


@lru_cache(maxsize=4096)
def _check_text(what: str, topic: str) -> None:
    check_storable(what, topic)
    check_topic(topic)
    if not WILDCARDS.isdisjoint(topic.split(".")):
        raise InvalidMessage(f"{what} {shown(topic)} holds a wildcard, which is for subscribing; nothing was stored")


def check_headers(headers: Mapping[str, str] | None) -> Mapping[str, str]:
    """The headers, checked; raises `InvalidMessage` for one that is not a string or cannot be stored."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a mapping of strings, not {shown(headers)}; nothing was stored")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(f"headers must be strings, but {shown(name)} is {shown(value)}; nothing was stored")
        check_storable("header", name)
        check_storable(f"header {shown(name)}", value)
    return headers


def check_storable(what: str, text: str | None) -> None:
    """Raise `InvalidMessage` for a text that UTF-8 cannot encode."""
    if text is None or (type(text) is str and text.isascii()):
        return
    if not isinstance(text, str):
        raise InvalidMessage(f"{what} must be a string, not {shown(text)}; nothing was stored")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(
            f"{what} holds a lone surrogate, which cannot be stored: {shown(text)}; nothing was stored"
        ) from None


def moment(name: str, value: Moment) -> int:
    """A point in time in microseconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidOption(f"{name} has no time zone: {value}; write it like datetime.now(UTC)")
        return round(value.timestamp() * SECOND)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{name} must be a datetime, or microseconds since the epoch, not {shown(value)}")
    return value
