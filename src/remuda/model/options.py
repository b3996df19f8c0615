"""Queue options (Q1-Q17, M8): one frozen value, checked when it is created. Durations are microseconds."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final, TypedDict, TypeVar, get_type_hints

import msgspec

from remuda.model.durations import MICROSECOND, SECOND, Duration, micros
from remuda.model.errors import InvalidOption
from remuda.model.message import MAX_PRIORITY
from remuda.model.texts import read_flag, read_name, shown


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


PER_TOPIC: Final = 0
"""Value of `confirmations`: one for each topic of the message."""


class QueueKwargs(TypedDict, total=False):
    """Options of a queue as people write them."""

    type: QueueType | str
    acknowledge: Acknowledge | str
    acknowledge_timeout: Duration
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
    confirmations: int | str
    queue_size: int
    topics: Iterable[str]
    patterns: Iterable[str]
    delivery_limit: int
    dead_letter_queue: str | None
    max_priority: int
    single_active_consumer: bool


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The options of one queue. `QueueOptions.parse` accepts them as people write them."""

    type: QueueType = QueueType.ROUND_ROBIN
    acknowledge: Acknowledge = Acknowledge.WAIT
    acknowledge_timeout: int = 15 * SECOND
    commit_when: CommitWhen = CommitWhen.RECEIVED
    message_timeout: int = 0
    expired_queue: str | None = None
    message_limit: int = 0
    limit_exceeded: LimitExceeded = LimitExceeded.REJECT_NEW
    byte_limit: int = 0
    """Limit for the total size of the bodies of all unsettled messages."""
    message_size_limit: int = 0
    client_limit: int = 0
    delay_between_messages: int = 0
    put_back: PutBack = PutBack.REGULAR
    put_back_delay: int = 0
    auto_destroy: AutoDestroy = AutoDestroy.DISABLED
    unique_ids: bool = False
    persistence: Persistence = Persistence.PERSISTENT
    confirmations: int = 1
    queue_size: int = 500
    topics: tuple[str, ...] = ()
    """Prefixes: messages under these topics come here as well as to the queue of their root."""
    patterns: tuple[str, ...] = ()
    """Patterns: `*` matches one word, `#` zero or more."""
    delivery_limit: int = 0
    """How often a message may come back before it ends; 0 means no limit."""
    dead_letter_queue: str | None = None
    """The queue for messages that expired, were evicted, or were ended by an answer; None parks them here."""
    max_priority: int = MAX_PRIORITY
    """Higher priorities are capped to this one; 0 ignores priorities."""
    single_active_consumer: bool = False
    """Whether only the first consumer is served, and the next one when it leaves."""

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

    @property
    def is_channel(self) -> bool:
        """Whether the queue receives topics besides its own root, as a subscriber's channel does (T2)."""
        return bool(self.topics or self.patterns)


_HINTS: Final[dict[str, Any]] = get_type_hints(QueueOptions)
_DURATIONS: Final = frozenset({"acknowledge_timeout", "message_timeout", "delay_between_messages", "put_back_delay"})

_QUEUES: Final = frozenset({"expired_queue", "dead_letter_queue"})

E_ = TypeVar("E_", bound=Enum)


def read_options(options: QueueOptions | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The given options, each checked and converted to its type; None if none are given."""
    if options is None:
        return None
    if isinstance(options, QueueOptions):
        return {name: _read(name, getattr(options, name), MICROSECOND) for name in _HINTS}
    if not isinstance(options, Mapping):
        raise InvalidOption(f"options must be QueueOptions or a mapping of names to values, not {shown(options)}")
    return {name: _read(name, value) for name, value in options.items()}


def _read(name: str, value: Any, unit: int = SECOND) -> Any:
    if name not in _HINTS:
        near = difflib.get_close_matches(name, _HINTS, n=1) if isinstance(name, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else f"; the options are {', '.join(sorted(_HINTS))}"
        raise InvalidOption(f"unknown queue option {shown(name)}{hint}")
    wanted = _HINTS[name]
    if name in _DURATIONS:
        return read_duration(name, value, unit)
    if name == "confirmations" and isinstance(value, str) and value == "per-topic":
        return PER_TOPIC
    if name in ("topics", "patterns"):
        return _topics(name, value)
    if name in _QUEUES:
        return None if value is None or (type(value) is str and not value) else read_name(name, value)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return read_enum(name, value, wanted)
    if wanted is bool:
        return read_flag(name, value)
    if wanted is int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise InvalidOption(f"{name} must be a whole number, zero or more, not {shown(value)}")
        return int(value)
    raise AssertionError(f"nothing reads the option {name}")


def read_enum(name: str, value: Any, wanted: type[E_]) -> E_:
    """The member that `value` names, or an error that lists them."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return wanted(value.replace("_", "-") if type(value) is str else value)
    choices = ", ".join(member.value for member in wanted)
    raise InvalidOption(f"{name} must be one of {choices}; not {shown(value)}")


def read_duration(name: str, value: Any, unit: int = SECOND) -> int:
    """A duration (a bare number counts in `unit`), or an error that names the option."""
    try:
        return micros(value, unit)
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from None


def _topics(name: str, value: Any) -> tuple[str, ...]:
    items = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else (None,)
    if not all(isinstance(item, str) and item for item in items):
        raise InvalidOption(f"{name} must be a list of topics, not {shown(value)}")
    return tuple(read_name(f"each of {name}", item) for item in items)
