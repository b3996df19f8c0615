"""Requests and answers of the API as types: they are what is decoded and what is documented."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from remuda.bus.publishing import headers as names
from remuda.bus.publishing.message_checks import check_target
from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.message import Priority
from remuda.model.message_row import MessageRow
from remuda.model.messages import Messages, fold
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.verbs import Verb
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.state import State
from remuda.model.values.durations import micros
from remuda.server.http.service import priority_of
from remuda.server.http.service_values import Change, Group, QueueSummary, TimelineEntry

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Span = str | float
"""A duration: seconds, or a string such as 250ms, 30s or 4h."""
Numbers = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=100_000)]


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """A message to publish. Its body is one of `body` (any JSON), `text` or `base64`; without one it is empty."""

    topic: Name
    body: Raw = msgspec.field(default_factory=Raw)
    text: str | None = None
    base64: bytes | None = None
    mime_type: Annotated[str, Meta(max_length=255)] | None = None
    id: Annotated[str, Meta(max_length=255)] = ""
    object: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    priority: int | str = 0
    delay: Span | None = None
    expires: Span | None = None
    callback: Name | None = None
    topics: Annotated[list[Name], Meta(max_length=1000)] | None = None
    """All topics it goes under, where that is not `topic` alone."""
    timestamp: Annotated[int, Meta(ge=0)] | None = None
    """The producer's time, in microseconds."""


class Published(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a batch: the ids of all messages and, by row, the errors of those that were refused."""

    ids: list[str]
    accepted: int
    refused: dict[str, str] = {}


class PullRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    wait: Annotated[float, Meta(ge=0, le=60)] = 0
    """Seconds to wait for a first message."""
    consumer: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    newest: bool = False


class PulledMessage(msgspec.Struct, frozen=True, rename="camel"):
    offset: int
    id: str
    name: str
    topics: list[str]
    attempt: int
    mime_type: str
    headers: dict[str, str]
    created: int
    timestamp: int | None = None
    object: str | None = None
    key: str | None = None
    text: str | None = None
    base64: bytes | None = None


class Pulled(msgspec.Struct, frozen=True, rename="camel"):
    """Messages that were taken. Answer with the delivery's token before the deadline, or they go back to the queue."""

    delivery: str | None
    messages: list[PulledMessage]
    deadline: int | None = None


class AnswerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    rows: Numbers | None = None
    """Which messages of the delivery, counted from 0; all without it."""
    after: Span = 0
    reason: Annotated[str, Meta(max_length=2000)] | None = None
    to: Name | None = None
    """For `dead`: the queue to move the message to."""
    front: bool | None = None
    """For `nack`: back before all others of its priority, or behind them, instead of what the queue says."""
    counted: bool | None = None
    """For `nack`: whether the attempt counts."""


class SendAgainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    time: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] | None = None
    """When it was forgotten, as the queue's changes tell; what was forgotten last if left out."""


class Settled(msgspec.Struct, frozen=True, rename="camel"):
    """How many messages were affected; 0 if an answer came too late or twice."""

    count: int


class Renewed(msgspec.Struct, frozen=True):
    renewed: bool


class ResendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What to change; everything else stays as it was. With `queue` it goes only there."""

    queue: Name | None = None
    topic: Name | None = None
    body: Raw = msgspec.field(default_factory=Raw)
    text: str | None = None
    base64: bytes | None = None
    mime_type: str | None = None
    headers: dict[str, str] | None = None
    forget: bool = False


class Resent(msgspec.Struct, frozen=True):
    id: str


class Cancelled(msgspec.Struct, frozen=True):
    """How many messages with this id end by it, and what it is now: `running` until its handler is interrupted."""

    cancelled: int
    status: str


class QueuePage(msgspec.Struct, frozen=True, rename="camel"):
    queues: list[QueueSummary]
    next: str | None = None


class MessagePage(msgspec.Struct, frozen=True, rename="camel"):
    messages: list[MessageRow]
    next: str | None = None
    note: str | None = None


class Groups(msgspec.Struct, frozen=True):
    groups: list[Group]


class QueueAnswer(msgspec.Struct, frozen=True, rename="camel"):
    summary: QueueSummary
    options: dict[str, Any]
    consumers: list[str]
    entered: dict[str, int]
    late_answers: int
    oldest: int | None = None
    flow: FlowInfo | None = None


class Changes(msgspec.Struct, frozen=True):
    changes: list[Change]


class LifeAnswer(msgspec.Struct, frozen=True, rename="camel"):
    document: dict[str, Any]
    timeline: list[TimelineEntry]
    parent: str | None = None
    children: list[MessageRow] = []


class LogPage(msgspec.Struct, frozen=True, rename="camel"):
    entries: list[dict[str, Any]]
    next: int


class Health(msgspec.Struct, frozen=True):
    live: bool
    ready: bool


class ProblemAnswer(msgspec.Struct, frozen=True):
    type: str
    title: str
    status: int
    detail: str


def body_of(body: Raw, text: str | None, base64: bytes | None, which: str = "") -> tuple[bytes, str]:
    """The bytes of a body, and their media type."""
    raw = bytes(body)
    if (raw != b"") + (text is not None) + (base64 is not None) > 1:
        raise InvalidMessage(f"{which}give only one of body, text and base64; nothing was stored")
    if text is not None:
        try:
            return text.encode(), "text/plain; charset=utf-8"
        except UnicodeEncodeError:
            raise InvalidMessage(f"{which}the text holds a lone surrogate; nothing was stored") from None
    if base64 is not None:
        return base64, "application/octet-stream"
    return raw, "application/json"


def columns_of(given: list[NewMessage], who: str, now: int) -> Messages:
    """A batch as columns, which the broker takes as cheaply as one message. A field that no message sets costs nothing.

    Built column by column, without objects per message that the garbage collector tracks: traversing thousands of
    tuples would cost more than everything else.
    """
    raws = [one.body for one in given]
    texts = [one.text for one in given]
    encoded = [one.base64 for one in given]
    kinds = [one.mime_type for one in given]
    ids = [one.id for one in given]
    priorities = [one.priority for one in given]
    if _unsaid(texts) and _unsaid(encoded):
        bodies, usual = list(map(bytes, raws)), ["application/json"]
    else:
        pairs = [body_of(*one, f"message {row}: ") for row, one in enumerate(zip(raws, texts, encoded, strict=True))]
        bodies, usual = [body for body, _ in pairs], [kind for _, kind in pairs]
    if not _unsaid(kinds):
        every = usual * len(given) if len(usual) == 1 else usual
        usual = [own or kind for own, kind in zip(kinds, every, strict=True)]
    due = _moments("delay", [one.delay for one in given], now)
    expires = _moments("expires", [one.expires for one in given], now)
    if due is not None and expires is not None:
        _check_order(due, expires)
    return Messages(
        bodies=bodies,
        name=fold([one.topic for one in given]),
        ids=ids if any(ids) else None,
        object=fold([one.object for one in given]),
        key=fold([one.key for one in given]),
        mime_type=fold(usual),
        headers=_headers([one.headers for one in given], [one.callback for one in given], who),
        priority=fold([priority_of(one) if one else Priority.NORMAL for one in priorities]) if any(priorities) else 0,
        expires=None if expires is None else fold(expires),
        due=None if due is None else fold(due),
        topics=fold([_topics(one.topics) for one in given]) if any(one.topics for one in given) else (),
        timestamp=fold([one.timestamp for one in given]),
    )


def _unsaid(column: list[Any]) -> bool:
    return column.count(None) == len(column)


def _headers(own: list[dict[str, str] | None], callbacks: list[str | None], who: str) -> Any:
    shared: Mapping[str, str] = {names.USER: who}
    if _unsaid(own) and _unsaid(callbacks):
        return shared
    made = []
    for given, callback in zip(own, callbacks, strict=True):
        if not given and callback is None:
            made.append(shared)
            continue
        headers = {**shared, **(given or {})}
        if callback is not None:
            headers[names.CALLBACK] = _callback(callback)
        made.append(headers)
    return fold(made)


def _topics(given: list[str] | None) -> tuple[str, ...]:
    for topic in given or ():
        check_target("topic", topic)
    return tuple(given or ())


def _callback(topic: str) -> str:
    try:
        check_target("callback", topic)
    except (InvalidMessage, InvalidOption) as error:
        raise InvalidMessage(f"callback: {error}") from None
    return topic


def _moments(name: str, spans: list[Span | None], now: int) -> list[int | None] | None:
    """The moment for each message that gives a duration; None if none does."""
    if _unsaid(spans):
        return None
    return [None if span is None else now + _micros(name, span) for span in spans]


def _check_order(due: list[int | None], expires: list[int | None]) -> None:
    for row, (first, last) in enumerate(zip(due, expires, strict=True)):
        if first is not None and last is not None and last <= first:
            raise InvalidMessage(f"message {row} would expire before it is due; nothing was stored")


def _micros(name: str, value: Span) -> int:
    try:
        span = micros(value)
    except (InvalidOption, OverflowError) as error:
        raise InvalidOption(f"{name}: {error}") from None
    if span > 100 * 366 * 86_400 * 1_000_000:
        raise InvalidOption(f"{name}: {value!r} is longer than a hundred years")
    return span


# Verbs

_STATES: Final = f"^([{''.join(State)}]*|[a-z-]+(,[a-z-]+)*)$"
_CHOICE: Final[tuple[tuple[str, Any, str], ...]] = (
    ("states", Annotated[str, Meta(pattern=_STATES)], "States by letters or names; {states} by default."),
    ("reason", str, "Part of the reason."),
    ("since", int, "Ended at or after this time."),
    ("until", int, "Ended before this time."),
    ("offsets", Numbers, "Only these messages."),
    ("group", str, "Only those of this group of dead letters."),
)
"""Which messages: those that match every field given."""


def request_of(verb: Verb) -> type[msgspec.Struct] | None:
    """The request of a verb, from its parameters; None if it has none."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for one in verb.parameters:
        if one.type is MessageFilter:
            states = "".join(state for state in State if state in verb.states)
            fields += [_optional(name, kind, text.format(states=states)) for name, kind, text in _CHOICE]
        elif one.required:
            fields.insert(0, (one.name, Annotated[Name if one.is_queue else one.type, Meta(description=one.help)]))
        elif one.type is bool:
            fields.append((one.name, Annotated[bool, Meta(description=one.help)], one.default))
        else:
            fields.append(_optional(one.name, one.type, one.help))
    if not fields:
        return None
    name = f"{verb.name.title().replace('_', '')}Request"
    return msgspec.defstruct(
        name, fields, frozen=True, forbid_unknown_fields=True, rename="camel", namespace={"__doc__": verb.help}
    )


def _optional(name: str, kind: Any, text: str) -> tuple[str, Any, Any]:
    limited = Annotated[int, Meta(ge=0)] if kind is int else kind
    return name, Annotated[limited | None, Meta(description=text)], None
