"""Queue options (Q1-Q17, M8): one frozen value, checked when it is created. Durations are microseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, TypedDict

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.message import MAX_PRIORITY
from remuda.model.queues.rates import read_rate
from remuda.model.values.durations import MICROSECOND, SECOND, Duration, text
from remuda.model.values.option_reading import Name, Read, Span, is_span, read_field
from remuda.model.values.texts import read_count, read_name, shown


class QueueType(StrEnum):
    PUSH = "push"
    ROUND_ROBIN = "round-robin"
    PULL = "pull"


class Acknowledge(StrEnum):
    NONE = "none"
    JUST_REQUEST = "just-request"
    WAIT = "wait"


class CommitWhen(StrEnum):
    NONE = "none"
    RECEIVED = "received"
    SENT = "sent"
    ACKNOWLEDGED = "acknowledged"


class LimitExceeded(StrEnum):
    REJECT_NEW = "reject-new"
    DELETE_OLDEST = "delete-oldest"


class PutBack(StrEnum):
    NO = "no"
    PRIORITY = "priority"
    REGULAR = "regular"


class AutoDestroy(StrEnum):
    DISABLED = "disabled"
    NO_MESSAGES = "no-messages"
    NO_CONSUMERS = "no-consumers"
    EMPTY = "empty"


class OnRetry(StrEnum):
    """What a message that is to be tried again does to the others of its key."""

    AUTO = "auto"
    """Hold in an ordered queue, pass in others."""
    HOLD = "hold"
    PASS = "pass"


class Singleton(StrEnum):
    """What becomes of a message while one of its key waits or runs."""

    NO = "no"
    REFUSE = "refuse"
    SKIP = "skip"
    REPLACE = "replace"


class Persistence(StrEnum):
    PERSISTENT = "persistent"
    MEMORY = "memory"


class Status(StrEnum):
    NOT_INITIALIZED = "not-initialized"
    RUNNING = "running"
    ONLY_PUBLISH = "only-publish"
    ONLY_CONSUME = "only-consume"
    PAUSED = "paused"

    __hash__ = str.__hash__  # As for states.


def status_word(status: str, consumers: int | None = None) -> str:
    """What a queue does, as people read it on the page and the command line. A queue that delivers has consumers or
    none; where that is not known (None) there is nothing to say."""
    if status == Status.RUNNING:
        return "" if consumers is None else "running" if consumers else "no consumer"
    words = {Status.ONLY_PUBLISH: "paused", Status.ONLY_CONSUME: "refusing", Status.PAUSED: "paused, refusing"}
    return words.get(Status(status), status)


PER_TOPIC: Final = 0
"""Value of `confirmations`: one for each topic of the message."""


def _topics(name: str, value: Any) -> tuple[str, ...]:
    items = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else (None,)
    if not all(isinstance(item, str) and item for item in items):
        raise InvalidOption(f"{name} must be a list of topics, not {shown(value)}")
    return tuple(read_name(f"each of {name}", item) for item in items)


def _confirmations(name: str, value: Any) -> int:
    return PER_TOPIC if isinstance(value, str) and value == "per-topic" else read_count(name, value)


KEY: Final = "key"
"""Value of `flow_key`: the message's own key."""


BODY: Final = "body"
"""Begins a `flow_key` that stands in the body."""


def _flow_key(name: str, value: Any) -> str:
    if isinstance(value, str) and value.isprintable():
        kind, _, where = value.partition(":")
        if value == KEY or (kind == "header" and where) or (kind == BODY and all(where.split("."))):
            return read_name(name, value)
    raise InvalidOption(f"{name} must be 'key', 'header:NAME' or 'body:NAME.NAME', not {shown(value)}")


def _named(name: str, value: Any, read: Callable[[str, Any], str]) -> tuple[str, ...]:
    """Values by name, from a mapping or from texts like `name=value`."""
    if isinstance(value, Mapping):
        items = list(value.items())
    else:
        texts = value.split(",") if isinstance(value, str) and value else value or ()
        if not isinstance(texts, Iterable) or not all(isinstance(text, str) and "=" in text for text in texts):
            raise InvalidOption(f"{name} must map names to values, or be texts like 'name=5', not {shown(value)}")
        items = [(one.strip(), own.strip()) for one, _, own in (text.rpartition("=") for text in texts)]
    found = {read_name(f"each name of {name}", one): read(f"{name} of {one!r}", own) for one, own in items}
    return tuple(f"{one}={own}" for one, own in sorted(found.items()))


def _limit(name: str, value: Any) -> str:
    if isinstance(value, str) and not value.isdecimal():
        return str(read_rate(name, value))
    return str(whole_of(name, value))


def whole_of(name: str, value: Any) -> int:
    """A whole number from 1 on, perhaps as a text."""
    return read_count(name, int(value) if isinstance(value, str) and value.isdecimal() else value, 1)


def _limits(name: str, value: Any) -> tuple[str, ...]:
    return _named(name, value, _limit)


def _weights(name: str, value: Any) -> tuple[str, ...]:
    return _named(name, value, lambda one, own: str(whole_of(one, own)))


Topics = Annotated[tuple[str, ...], Read(_topics)]
Confirmations = Annotated[int, Read(_confirmations)]
RateText = Annotated[str | None, Read(read_rate)]
FlowKey = Annotated[str, Read(_flow_key)]
Limits = Annotated[tuple[str, ...], Read(_limits)]
Weights = Annotated[tuple[str, ...], Read(_weights)]


class QueueRuleKwargs(TypedDict, total=False):
    """Options of a queue as people write them, as far as they do not follow from a bus's handlers and settings."""

    commit_when: CommitWhen | str
    message_timeout: Duration
    expired_queue: str | None
    message_limit: int
    limit_exceeded: LimitExceeded | str
    byte_limit: int
    message_size_limit: int
    client_limit: int
    delay_between_messages: Duration
    put_back: PutBack | str
    put_back_delay: Duration
    auto_destroy: AutoDestroy | str
    unique_ids: bool
    persistence: Persistence | str
    delivery_limit: int
    dead_letter_queue: str | None
    max_priority: int
    single_active_consumer: bool
    flow_key: str
    ordered: bool
    on_retry: OnRetry | str
    concurrency: int
    concurrency_per_key: int
    limits: Mapping[str, int | str] | Iterable[str]
    rate: str | None
    rate_per_key: str | None
    key_limits: Mapping[str, int | str] | Iterable[str]
    fair: bool
    weights: Mapping[str, int] | Iterable[str]
    debounce: Duration
    max_wait: Duration
    throttle: Duration
    singleton: Singleton | str


class QueueKwargs(QueueRuleKwargs, total=False):
    """All options of a queue as people write them."""

    type: QueueType | str
    acknowledge: Acknowledge | str
    acknowledge_timeout: Duration
    confirmations: int | str
    queue_size: int
    topics: Iterable[str]
    patterns: Iterable[str]


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The options of one queue. `QueueOptions.parse` accepts them as people write them."""

    type: QueueType = QueueType.ROUND_ROBIN
    acknowledge: Acknowledge = Acknowledge.WAIT
    acknowledge_timeout: Span = 15 * SECOND
    commit_when: CommitWhen = CommitWhen.RECEIVED
    message_timeout: Span = 0
    expired_queue: Name = None
    message_limit: int = 0
    limit_exceeded: LimitExceeded = LimitExceeded.REJECT_NEW
    byte_limit: int = 0
    """Limit for the total size of the bodies of all unsettled messages."""
    message_size_limit: int = 0
    client_limit: int = 0
    delay_between_messages: Span = 0
    put_back: PutBack = PutBack.REGULAR
    put_back_delay: Span = 0
    auto_destroy: AutoDestroy = AutoDestroy.DISABLED
    unique_ids: bool = False
    persistence: Persistence = Persistence.PERSISTENT
    confirmations: Confirmations = 1
    queue_size: int = 500
    topics: Topics = ()
    """Prefixes: messages under these topics come here as well as to the queue of their root."""
    patterns: Topics = ()
    """Patterns: `*` matches one word, `#` zero or more."""
    delivery_limit: int = 0
    """How often a message may come back before it ends; 0 means no limit."""
    dead_letter_queue: Name = None
    """The queue for messages that expired, were evicted, or were ended by an answer; None parks them here."""
    max_priority: int = MAX_PRIORITY
    """Higher priorities are capped to this one; 0 ignores priorities."""
    single_active_consumer: bool = False
    """Whether only the first consumer is served, and the next one when it leaves."""
    flow_key: FlowKey = KEY
    """What the rules per key count by: the message's own key, or a header of it."""
    ordered: bool = False
    """Whether messages of one key are handled one at a time, in the order of their publishing."""
    on_retry: OnRetry = OnRetry.AUTO
    concurrency: int = 0
    """How many messages may be in flight, over all processes; 0 means no limit."""
    concurrency_per_key: int = 0
    limits: Limits = ()
    """Limits shared with all queues that name them: how many in flight together, or a rate."""
    rate: RateText = None
    """How many messages start in a time."""
    rate_per_key: RateText = None
    key_limits: Limits = ()
    """Limits of single keys instead of those of all: how many in flight, or a rate."""
    fair: bool = False
    """Whether keys take turns, however much each has waiting."""
    weights: Weights = ()
    """How many turns a key has where others have one."""
    debounce: Span = 0
    """For how long a key must be quiet before the last of its messages goes out, instead of all."""
    max_wait: Span = 0
    """After how long it goes out in any case."""
    throttle: Span = 0
    """For how long the first message of a key is enough."""
    singleton: Singleton = Singleton.NO

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None = None, /, **more: Any) -> QueueOptions:
        """Options from strings, numbers, timedeltas and enum members; refuses unknown names and impossible values."""
        return cls().changed({**(options or {}), **more})

    def changed(self, options: Mapping[str, Any]) -> QueueOptions:
        """A copy of these options with some changed."""
        return self.with_values(read_options(options) or {})

    def with_values(self, values: Mapping[str, Any]) -> QueueOptions:
        """A copy of these options with some values changed, given as `read_options` returns them."""
        result = msgspec.structs.replace(self, **values) if values else self
        result.check()
        return result

    def check(self) -> None:
        """Raise `InvalidOption` for values that contradict each other."""
        if self.confirmations != 1 and self.type is not QueueType.PUSH:
            raise InvalidOption(
                f"confirmations={self.confirmations} needs type='push': in a {self.type.value} queue "
                "only one consumer receives each message"
            )
        if self.max_priority > MAX_PRIORITY:
            raise InvalidOption(f"max_priority must be 0 to {MAX_PRIORITY}, not {self.max_priority}")
        if self.single_active_consumer and self.type is QueueType.PUSH:
            raise InvalidOption("single_active_consumer contradicts type='push', which serves every consumer")
        if self.acknowledge_timeout == 0:
            raise InvalidOption("acknowledge_timeout must be longer than zero")
        if self != _DEFAULTS:  # what came over a wire has its types, and perhaps an impossible text
            for name in _TEXTS:
                _read(name, getattr(self, name))
        if self.acknowledge is Acknowledge.NONE and (counts := self._counting()):
            raise InvalidOption(
                f"{counts} counts what is in flight, and with acknowledge='none' nothing is: "
                "a message is done when it is handed over"
            )
        if bool(self.debounce) + bool(self.throttle) + (self.singleton is not Singleton.NO) > 1:
            raise InvalidOption(
                "debounce (the last of a key wins), throttle (the first wins) and singleton (one at a time) contradict "
                "each other; choose one"
            )
        if self.ordered and _has_slots(self.key_limits):
            raise InvalidOption("ordered handles one message of a key at a time, so no key may have more")
        if self.confirmations != 1 and self.takes_turns:
            raise InvalidOption("confirmations contradict rules per key, under which each message has one answer")

    def _counting(self) -> str | None:
        for name in ("ordered", "concurrency", "concurrency_per_key"):
            if getattr(self, name):
                return name
        return "limits" if _has_slots(self.limits) else "key_limits" if _has_slots(self.key_limits) else None

    @property
    def body_key(self) -> str | None:
        """Where in the body the key stands by which the rules count."""
        kind, _, path = self.flow_key.partition(":")
        return path if kind == BODY and self.takes_turns else None

    @property
    def weighs(self) -> bool:
        """Whether a rate counts what messages weigh."""
        return bool(self.rate is not None or self.rate_per_key is not None or self.limits or self.key_limits)

    @property
    def has_flow(self) -> bool:
        """Whether a rule says how much goes out, and when."""
        return bool(self.concurrency or self.limits or self.rate is not None or self.takes_turns)

    @property
    def paces(self) -> bool:
        """Whether a message that is taken too early keeps others from starting."""
        return bool(
            self.concurrency or self.limits or self.rate is not None or self.concurrency_per_key
            or self.rate_per_key is not None or self.key_limits
        )  # fmt: skip

    @property
    def takes_turns(self) -> bool:
        """Whether a rule looks at the keys of messages."""
        return (
            self.ordered or self.concurrency_per_key > 0 or self.rate_per_key is not None or bool(self.key_limits)
            or self.fair or self.merges
        )  # fmt: skip

    @property
    def merges(self) -> bool:
        """Whether one message of a key may stand for several."""
        return bool(self.debounce or self.throttle or self.singleton is not Singleton.NO)

    @property
    def is_channel(self) -> bool:
        """Whether the queue receives topics besides its own root, as a subscriber's channel does (T2)."""
        return bool(self.topics or self.patterns)


def _has_slots(limits: tuple[str, ...]) -> bool:
    """Whether one of these limits counts what is in flight; the others are rates."""
    return any(one.rpartition("=")[2].isdecimal() for one in limits)


_DEFAULTS: Final = QueueOptions()
_TEXTS: Final = ("flow_key", "rate", "rate_per_key", "limits", "key_limits", "weights")
Options = QueueOptions | Mapping[str, Any] | None
"""Options as callers give them."""


def read_options(options: QueueOptions | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The given options, each checked and converted to its type; None if none are given."""
    if options is None:
        return None
    if isinstance(options, QueueOptions):
        names = options.__struct_fields__
        return {name: _read(name, getattr(options, name), MICROSECOND) for name in names}
    if not isinstance(options, Mapping):
        raise InvalidOption(f"options must be QueueOptions or a mapping of names to values, not {shown(options)}")
    return {name: _read(name, value) for name, value in options.items()}


def _read(name: str, value: Any, unit: int = SECOND) -> Any:
    return read_field(QueueOptions, "queue option", name, value, unit)


def as_written(options: QueueOptions) -> dict[str, Any]:
    """All options as people write them."""
    return {name: written(name, getattr(options, name)) for name in options.__struct_fields__}


def written(name: str, value: Any) -> Any:
    """The value of an option as people write it."""
    if is_span(QueueOptions, name):
        return text(value)
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, Enum) else value
