"""Messages on their way in, from what an application says to a checked `Message`, and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from remuda.bus.broker_api import MessageFilter, Parked
from remuda.bus.publishing import bodies
from remuda.bus.publishing import headers as names
from remuda.model.document import Document, QueueView
from remuda.model.durations import SECOND, Duration, micros
from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages, fold
from remuda.model.state import State
from remuda.model.topics import check_topic

Moment = int | datetime
"""Microseconds since the epoch, or a datetime with a time zone."""

_WILD: Final = frozenset({"*", "#"})


class PublishOptions(msgspec.Struct, frozen=True):
    """How a message is to be sent, beside its topic and body."""

    callback: str | None = None
    headers: Mapping[str, str] | None = None
    id: str = ""
    object: str | None = None
    key: str | None = None
    mime_type: str | None = None
    priority: Priority | str = Priority.NORMAL
    delay: Duration | None = None
    at: Moment | None = None
    expires: Duration | None = None
    user: str | None = None

    def messages(
        self, topic: str, values: Iterable[Any], inherited: Mapping[str, str], encoding: str, now: int
    ) -> Messages:
        """A message for each value, or `InvalidMessage` for what cannot be one."""
        headers = self._headers(topic, inherited)
        due, expires = self._due(now), None if self.expires is None else now + micros(self.expires)
        if due is not None and expires is not None and expires <= due:
            raise InvalidMessage("the message would expire before it is due; nothing was stored")
        written, mime_types = [], []
        typed: list[Mapping[str, str]] = []
        known = {bytes: headers, bytearray: headers, type(None): headers}
        for value in values:
            body, mime_type = bodies.encode(value, encoding)
            kind = type(value)
            if kind not in known:
                known[kind] = {names.MESSAGE_TYPE: bodies.type_name(kind), **headers}
            written.append(body)
            mime_types.append(mime_type)
            typed.append(known[kind])
        return Messages(
            bodies=written,
            name=topic,
            ids=[self.id] * len(written) if self.id else None,
            object=self.object,
            key=self.key,
            mime_type=self.mime_type or fold(mime_types),
            headers=fold(typed),
            priority=_priority(self.priority),
            expires=expires,
            due=due,
        )

    def _headers(self, topic: str, inherited: Mapping[str, str]) -> dict[str, str]:
        check_target("topic", topic)
        headers = {**inherited, **checked_headers(self.headers)} if self.headers else dict(inherited)
        if self.callback is not None:
            check_target("callback", self.callback)
            headers[names.CALLBACK] = self.callback
        if self.user is not None:
            headers[names.USER] = self.user
        return headers

    def _due(self, now: int) -> int | None:
        if self.delay is not None and self.at is not None:
            raise InvalidMessage("give either a delay or the time at which it is due, not both; nothing was stored")
        if self.delay is not None:
            return now + micros(self.delay)
        return None if self.at is None else moment("at", self.at)


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that finished without success in one queue."""

    id: str
    topic: str
    state: State
    reason: str
    time: int
    """When it finished, in microseconds since the epoch."""
    attempts: int
    body: bytes
    message: Message
    history: QueueView
    """All that became of it in this queue, with a traceback in `detail` and each attempt in `consumed_by`."""


def dead_letter(queue: str, parked: Parked, document: Document) -> DeadLetter:
    history = next(view for view in document.queues if view.queue == queue)
    message = document.message
    return DeadLetter(
        message.id,
        message.name,
        parked.state,
        parked.reason,
        parked.time,
        history.attempts,
        message.body,
        message,
        history,
    )


def selection(
    *,
    reason: str | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    states: str | frozenset[State] | None = None,
) -> MessageFilter:
    """A choice of dead letters; `states` may be given as letters: E dead, I invalid, N not interested."""
    chosen = MessageFilter(reason=reason, since=0 if since is None else moment("since", since))
    if until is not None:
        chosen = msgspec.structs.replace(chosen, until=moment("until", until))
    if states is not None:
        chosen = msgspec.structs.replace(chosen, states=frozenset(map(State, states)))
    return chosen


def moment(name: str, value: Moment) -> int:
    """A point in time in microseconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidOption(f"{name} has no time zone: {value}; write it like datetime.now(UTC)")
        return round(value.timestamp() * SECOND)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{name} must be a datetime, or microseconds since the epoch, not {value!r}")
    return value


def check_target(what: str, topic: str) -> None:
    """Raise `InvalidMessage` for a topic to which nothing can be published."""
    if not isinstance(topic, str):
        raise InvalidMessage(f"a {what} must be a text, not {topic!r}; nothing was stored")
    _check_text(what, topic)


@lru_cache(maxsize=4096)
def _check_text(what: str, topic: str) -> None:
    check_topic(topic)
    if not _WILD.isdisjoint(topic.split(".")):
        raise InvalidMessage(f"{what} {topic!r} holds a wildcard, which is for subscribing; nothing was stored")


def checked_headers(headers: Mapping[str, str] | None) -> Mapping[str, str]:
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(f"headers are texts, but {name!r} is {value!r}; nothing was stored")
    return headers or {}


def _priority(value: Priority | str) -> Priority:
    if type(value) is Priority:
        return value
    try:
        return Priority[value.upper()] if isinstance(value, str) else Priority(value)
    except (KeyError, ValueError):
        raise InvalidMessage(f"priority must be high or normal, not {value!r}; nothing was stored") from None
