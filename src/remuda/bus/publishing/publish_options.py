"""The options of `publish`, `send` and `call`, and the checked messages that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

import msgspec

from remuda.bus.broker_api import Clock
from remuda.bus.publishing import bodies
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.message_checks import Moment, check_headers, check_storable, check_target, moment
from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.message import Priority, read_priority
from remuda.model.messages import Messages, fold
from remuda.model.queues.flow_info import FLOW_CONCURRENCY, FLOW_KEY, FLOW_WEIGHT, HEAVIEST
from remuda.model.values.durations import Duration
from remuda.model.values.option_reading import check_keywords, read_duration
from remuda.model.values.texts import read_count, read_flag, shown

_UNTYPED: Final[frozenset[type]] = frozenset({bytes, bytearray, memoryview, type(None)})
"""Values of these types get no type header."""


class SendKwargs(TypedDict, total=False):
    """Options of `send`, which stores nothing."""

    headers: Mapping[str, str] | None
    id: str
    object: str | None
    key: str | None
    mime_type: str | None
    user: str | None


class CallKwargs(SendKwargs, total=False):
    """Options of `call`, which receives the reply itself."""

    priority: Priority | int | str
    delay: Duration | None
    at: Moment | None
    expires: Duration | None


class BatchKwargs(TypedDict, total=False):
    """Options of `publish_many`: what all its messages share."""

    callback: str | None
    failure_callback: str | None
    headers: Mapping[str, str] | None
    object: str | None
    key: str | None
    mime_type: str | None
    priority: Priority | int | str
    delay: Duration | None
    at: Moment | None
    expires: Duration | None
    user: str | None
    keep_result: bool
    topics: Sequence[str]
    timestamp: Moment | None
    flow_key: str | None
    weight: int
    key_concurrency: int | None


class PublishKwargs(BatchKwargs, total=False):
    """Options of `publish`."""

    id: str
    unique: str | None
    idempotency_key: str | None


class PublishOptions(msgspec.Struct, frozen=True):
    """Everything about a message to publish except its topic and body."""

    callback: str | None = None
    headers: Mapping[str, str] | None = None
    id: str = ""
    object: str | None = None
    key: str | None = None
    mime_type: str | None = None
    priority: Priority | int | str = Priority.NORMAL
    delay: Duration | None = None
    at: Moment | None = None
    expires: Duration | None = None
    user: str | None = None
    failure_callback: str | None = None
    keep_result: bool = False
    topics: Sequence[str] = ()
    timestamp: Moment | None = None
    flow_key: str | None = None
    """What the rules of its queues count it by, instead of its key."""
    weight: int = 1
    """As how many it counts for the rates of its queues."""
    key_concurrency: int | None = None
    """How many of its key may be in flight, in queues that limit that; the newest message's word stands."""

    def messages(
        self, topic: str, values: Iterable[Any], inherited: Mapping[str, str], encoding: str, now: int
    ) -> Messages:
        """One message for each value; raises `InvalidMessage`."""
        headers = self._headers(topic, inherited)
        due = self._due(now)
        expires = None if self.expires is None else now + read_duration("expires", self.expires)
        if due is not None and expires is not None and expires <= due:
            raise InvalidMessage("the message would expire before it is due; nothing was stored")
        written: list[bytes] = []
        mime_types: list[str] = []
        typed: list[Mapping[str, str]] = []
        known: dict[type, Mapping[str, str]] = dict.fromkeys(_UNTYPED, headers)
        for value in values:
            try:
                body, mime_type = bodies.encode(value, encoding)
            except InvalidMessage as error:
                raise InvalidMessage(f"row {len(written)}: {error}") from error
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
            topics=self._topics(),
            timestamp=self._timestamp(),
            object=self.object,
            key=self.key,
            mime_type=self.mime_type or fold(mime_types),
            headers=fold(typed),
            priority=read_priority(self.priority),
            expires=expires,
            due=due,
        )

    def message(self, topic: str, value: Any, inherited: Mapping[str, str], encoding: str, clock: Clock) -> Messages:
        """Like `messages`, for one value."""
        if self.delay is not None or self.at is not None or self.expires is not None:
            return self.messages(topic, (value,), inherited, encoding, clock())
        headers = self._headers(topic, inherited)
        body, mime_type = bodies.encode(value, encoding)
        kind = type(value)
        if kind not in _UNTYPED:
            headers = {names.MESSAGE_TYPE: bodies.type_name(kind), **headers}
        return Messages(
            bodies=[body],
            name=topic,
            ids=[self.id] if self.id else None,
            topics=self._topics() if self.topics else (),
            timestamp=None if self.timestamp is None else self._timestamp(),
            object=self.object,
            key=self.key,
            mime_type=self.mime_type or mime_type,
            headers=headers,
            priority=read_priority(self.priority),
        )

    def _headers(self, topic: str, inherited: Mapping[str, str]) -> dict[str, str]:
        check_target("topic", topic)
        if type(self.id) is not str or self.id:
            check_storable("id", self.id)
        if self.object is not None:
            check_storable("object", self.object)
        if self.key is not None:
            check_storable("key", self.key)
        if self.mime_type is not None:
            check_storable("mime_type", self.mime_type)
        headers = {**inherited, **check_headers(self.headers)} if self.headers is not None else dict(inherited)
        if self.callback is not None:
            check_target("callback", self.callback)
            headers[names.CALLBACK] = self.callback
        if self.failure_callback is not None:
            check_target("failure callback", self.failure_callback)
            headers[names.FAILURE_CALLBACK] = self.failure_callback
        if self.keep_result is not False and read_flag("keep_result", self.keep_result):
            headers[names.KEEP_RESULT] = "1"
        if self.user is not None:
            check_storable("user", self.user)
            headers[names.USER] = self.user
        if self.flow_key is not None:
            check_storable("flow_key", self.flow_key)
            headers[FLOW_KEY] = self.flow_key
        if self.weight != 1:
            headers[FLOW_WEIGHT] = _counted("weight", self.weight)
        if self.key_concurrency is not None:
            headers[FLOW_CONCURRENCY] = _counted("key_concurrency", self.key_concurrency)
        return headers

    def _topics(self) -> tuple[str, ...]:
        if isinstance(self.topics, str | bytes) or not isinstance(self.topics, Sequence):
            raise InvalidMessage(f"topics must be a list of topics, not {shown(self.topics)}; nothing was stored")
        for topic in self.topics:
            check_target("topic", topic)
        return tuple(self.topics)

    def _timestamp(self) -> int | None:
        return None if self.timestamp is None else moment("timestamp", self.timestamp)

    def _due(self, now: int) -> int | None:
        if self.delay is not None and self.at is not None:
            raise InvalidMessage("give delay or at, not both; nothing was stored")
        if self.delay is not None:
            return now + read_duration("delay", self.delay)
        return None if self.at is None else moment("at", self.at)


def _counted(name: str, value: Any) -> str:
    try:
        number = read_count(name, value, 1)
    except InvalidOption as error:
        raise InvalidMessage(f"{error}; nothing was stored") from None
    if number > HEAVIEST:
        raise InvalidMessage(f"{name} is at most {HEAVIEST}, not {number}; nothing was stored")
    return str(number)


def read_publish_options(options: Mapping[str, Any]) -> PublishOptions:
    """Options by name; a `TypeError` for an unknown one."""
    try:
        return PublishOptions(**options)
    except TypeError:
        check_keywords("publish", options, PublishOptions.__struct_fields__)
        raise


def once_id(id: str, unique: str | None, idempotency_key: str | None) -> str:
    """The id of a message published with `unique` or `idempotency_key`."""
    if (unique is not None and idempotency_key is not None) or id:
        raise InvalidMessage("give one of id, unique and idempotency_key, not several; nothing was stored")
    key = unique if unique is not None else idempotency_key
    if not isinstance(key, str) or not key:
        raise InvalidMessage(f"unique and idempotency_key must be strings, not {shown(key)}; nothing was stored")
    return key
