"""Checks callers' arguments, once, before anything changes, and makes commands of them.

Every error names the argument. Behind these checks, values have the types they are annotated with.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidMessage, InvalidOption, NotFound, PartlyRefused
from remuda.model.message import Message
from remuda.model.messages import Column, Messages, cell, of_plain
from remuda.model.notes import NOTE, Note, read_note
from remuda.model.operations.commands import Once, Publish, Pull, Subscribe
from remuda.model.operations.results import Receipt
from remuda.model.operations.verbs import LANES
from remuda.model.queues.options import Options, read_options
from remuda.model.settlement import Outcome, Settlement
from remuda.model.values.durations import DAY, MICROSECOND, SECOND, Duration
from remuda.model.values.option_reading import read_duration, read_enum
from remuda.model.values.texts import (
    MAX_NAME_BYTES,
    is_plain_name,
    read_count,
    read_flag,
    read_name,
    read_optional_text,
    read_text,
    shown,
)
from remuda.native import columns

Publishable = Message | Messages | Sequence[Message]
ONCE: Final = ("waiting", "ever")
CLEAR_AFTER: Final = ("none", *LANES)
_IN_2001: Final = 10**15

_numbers = itertools.count(1)
_own = threading.local()


# Publishing


def as_batch(messages: Publishable) -> Messages:
    """Messages as columns, every value of its proper type."""
    if isinstance(messages, Message):
        return of_plain(messages) or Messages.of_one(_with_tuple(messages)).checked()
    if isinstance(messages, Messages):
        return messages.checked()
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise InvalidMessage(f"publish takes messages, not {type(messages).__name__}; nothing was stored")
    rows = list(messages)
    for at, row in enumerate(rows):
        if not isinstance(row, Message):
            raise InvalidMessage(f"row {at}: publish takes messages, not {type(row).__name__}; nothing was stored")
        rows[at] = _with_tuple(row)
    return Messages.of(rows).checked()


def _with_tuple(message: Message) -> Message:
    """Make a list of topics a tuple, and refuse other lists: in a batch they would be taken for columns."""
    if message.id is not None and not isinstance(message.id, str):
        raise InvalidMessage(f"id must be a string, not {shown(message.id)}; nothing was stored")
    if isinstance(message.topics, list):
        message = msgspec.structs.replace(message, topics=tuple(message.topics))
    for name in _SINGLE:
        if type(getattr(message, name)) is list:
            raise InvalidMessage(
                f"{name} must be a single value, not {shown(getattr(message, name))}; nothing was stored"
            )
    return message


_SINGLE: Final = tuple(name for name in Message.__struct_fields__ if name not in ("topics", "body", "id"))


def publish(
    messages: Publishable,
    queue: str | None,
    unbound: str | None,
    exchange: str | None,
    options: Options,
    timeout: Duration | None = None,
) -> Publish:
    """The command to publish. `timeout` is only checked here; the caller waits."""
    command = plain_publish(messages, queue, unbound, exchange, options, timeout)
    if command is not None:
        return command
    batch = as_batch(messages)
    if batch.expires is not None:
        _check_unit("expires", batch.expires)
    if batch.due is not None:
        _check_unit("due", batch.due)
    if timeout is not None:
        read_duration("timeout", timeout)
    if queue is not None:
        queue = read_name("queue", queue)
    if unbound is not None:
        unbound = read_name("unbound", unbound)
    if exchange is not None:
        exchange = read_name("router", exchange)
    return Publish(batch, queue, unbound, exchange, None if options is None else read_options(options))


def route(router: str, messages: Publishable, timeout: Duration | None) -> Publish:
    """The command to publish through a router."""
    return publish(messages, None, None, read_name("router", router), None, timeout)


def _plain_publish(
    messages: Publishable,
    queue: str | None,
    unbound: str | None,
    exchange: str | None,
    options: Options,
    timeout: Duration | None,
) -> Publish | None:
    if unbound is not None or exchange is not None or options is not None or timeout is not None:
        return None
    if type(messages) is not Message or (queue is not None and not is_plain_name(queue)):
        return None
    batch = of_plain(messages)
    return None if batch is None else Publish(batch, queue)


plain_publish: Callable[..., Publish | None] = _plain_publish if columns is None else columns.plain_publish
"""The command to publish one message that needs no further checks; None if it does."""


def _check_unit(name: str, column: Column[int | None]) -> None:
    """Refuse times before 2001: they are seconds or milliseconds instead of microseconds. A deadline that has just
    passed is accepted: the message may have been on its way for long."""
    for row, value in enumerate(column if isinstance(column, list) else [column]):
        if value is not None and value < _IN_2001:
            where = f"row {row}: " if isinstance(column, list) else ""
            raise InvalidMessage(
                f"{where}{name}={value} is long past; times are microseconds since 1970, "
                f"such as time.time_ns() // 1000, not seconds or milliseconds. Nothing was stored"
            )


def report_refusals(receipt: Receipt) -> None:
    """Raise the refusal of a single message as it is, of a batch as one error that says how many."""
    refusals = receipt.refusals
    if not refusals:
        return
    row, first = next(iter(refusals.items()))
    if len(receipt) == 1:
        raise first
    text = (
        f"{len(refusals)} of {len(receipt)} messages were refused, the others are stored. "
        f"The first, in row {row}: {first}"
    )
    raise PartlyRefused(text, receipt)


def lives(once: str | None) -> bool | None:
    """Whether an id that is published once is new if no message has ever had it; None if it is no such publish."""
    if once is None:
        return None
    if not isinstance(once, str) or once not in ONCE:
        raise InvalidOption(f"once must be {' or '.join(map(repr, ONCE))}, not {shown(once)}; nothing was stored")
    return once == "ever"


def published_once(command: Publish, ever: bool, upto: int, found: Sequence[int]) -> Publish:
    """The same command, to be carried out only if the message's id is new."""
    return msgspec.structs.replace(command, once=Once(ever, upto, tuple(found)))


def published_with(command: Publish, note: Note) -> Publish:
    """The same command, whose last message is a note."""
    note, messages = read_note(note), command.messages
    if not messages.bodies or cell(messages.name, len(messages) - 1) != NOTE or command.exchange is not None:
        raise InvalidMessage(
            f"the last message of a batch with note= must be named {NOTE!r}, without a router; nothing was stored"
        )
    if not isinstance(messages.ids, list) or not messages.ids[-1]:
        raise InvalidMessage("a note needs an id of its own; nothing was stored")
    return msgspec.structs.replace(command, note=note)


def id_for_once(command: Publish) -> str:
    """The id that must be new."""
    messages = command.messages
    if len(messages.bodies) != 1 or not messages.id(0) or command.exchange is not None:
        raise InvalidMessage("once= takes a single message with an id of your own, and no router; nothing was stored")
    return messages.id(0)


# Consuming


def consumer_name(given: str | None) -> str:
    """The name given, or one that no other consumer of this machine has."""
    if given is None:
        return f"{os.getpid()}-{threading.current_thread().name}-{next(_numbers)}"
    name = read_name("consumer", given)
    if ", " in name:
        raise InvalidOption(f"consumer must be a string without ', ', not {shown(given)}")
    return name


def puller_name(given: str | None) -> str:
    """The name given, or that of this thread: pulls may share a name."""
    if given is not None:
        return consumer_name(given)
    try:
        name: str = _own.name
    except AttributeError:
        name = _own.name = f"{os.getpid()}-{threading.current_thread().name}"
    return name


def _forget_own_names() -> None:
    """In a fork: its threads need names with the new process id."""
    global _own
    _own = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_own_names)


def subscribe(
    tag: int,
    queue: str,
    consumer: str | None,
    batch: int,
    credit: int | None,
    group: str | None,
    options: Options,
    priority: int = 0,
) -> Subscribe:
    size = read_count("batch", batch, 1)
    held = size if credit is None else read_count("credit", credit, 1)
    name = read_name("queue", queue)
    return Subscribe(
        name,
        consumer_name(consumer),
        tag,
        size,
        held,
        None if group is None else read_name("group", group),
        read_options(options),
        _signed("priority", priority),
    )


def _signed(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 31:
        raise InvalidOption(f"{name} must be a whole number of 32 bits, not {shown(value)}")
    return int(value)


def channel_options(topics: Iterable[str], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """A channel is a queue that is fed by topic prefixes and belongs to one subscriber, unless it says otherwise."""
    if not isinstance(topics, Iterable) or isinstance(topics, bytes | Mapping):
        raise InvalidOption(f"topics must be a list of topic prefixes, not {shown(topics)}")
    prefixes = [topics] if isinstance(topics, str) else list(topics)
    for prefix in prefixes:
        read_name("each of topics", prefix)
    if not prefixes:
        raise InvalidOption("a channel needs at least one topic prefix; '*' takes everything")
    if options is not None and not isinstance(options, Mapping):
        raise InvalidOption(f"options must be a mapping of names to values, not {shown(options)}")
    return {"type": "round-robin", "client_limit": 1, **(options or {}), "topics": prefixes}


def pull(
    tag: int, queue: str, consumer: str | None, count: int, newest: bool, clear_after: str, timeout: Duration
) -> Pull:
    if is_plain_pull(queue, count, newest, clear_after, timeout):
        return Pull(queue, puller_name(consumer), tag, count)
    count = read_count("count", count, 1)
    queue = read_name("queue", queue)
    newest = read_flag("newest", newest)
    clear_after = _choice("clear_after", clear_after, CLEAR_AFTER)
    wait = read_duration("timeout", timeout)
    return Pull(queue, puller_name(consumer), tag, count, newest, wait, clear_after)


def _is_plain_pull(queue: str, count: int, newest: bool, clear_after: str, timeout: Duration) -> bool:
    return (
        newest is False
        and type(count) is int
        and 1 <= count < 1 << 62
        and type(timeout) is int
        and not timeout
        and type(clear_after) is str
        and clear_after == "none"
        and is_plain_name(queue)
    )


is_plain_pull = _is_plain_pull if columns is None else columns.is_plain_pull
"""Whether a pull has no special options and does not wait."""


def settlement(
    outcome: Outcome,
    consumer: str,
    *,
    reason: str | None = None,
    after: Duration | None = None,
    detail: str | None = None,
    to: str | None = None,
    front: bool | None = None,
    counted: bool | None = None,
) -> Settlement:
    """A consumer's answer as a value."""
    return Settlement(
        outcome,
        read_optional_text("reason", reason),
        None if after is None else read_duration("after", after),
        consumer,
        detail=read_optional_text("detail", detail),
        to=None if to is None else read_name("to", to),
        front=None if front is None else read_flag("front", front),
        counted=None if counted is None else read_flag("counted", counted),
    )


def checked_settlement(given: Settlement, consumer: str) -> Settlement:
    """A settlement that a caller made itself."""
    if type(given) is Settlement and _is_plain(given):
        return given if given.consumer == consumer else msgspec.structs.replace(given, consumer=consumer)
    if not isinstance(given, Settlement):
        raise InvalidOption(f"an answer must be a Settlement, not {shown(given)}")
    outcome = read_enum("outcome", given.outcome, Outcome)
    if given.to is not None and outcome is not Outcome.DEAD:
        raise InvalidOption(f"to needs the outcome {Outcome.DEAD.value}, not {outcome.value}")
    delay = None if given.delay is None else read_duration("delay", given.delay, MICROSECOND)
    made = settlement(
        outcome, consumer, reason=given.reason, detail=given.detail, to=given.to, front=given.front,
        counted=given.counted,
    )  # fmt: skip
    who, whole = read_optional_text("who", given.who), read_flag("whole", given.whole)
    awaits = read_count("awaits", given.awaits)
    return msgspec.structs.replace(made, delay=delay, who=who, whole=whole, awaits=awaits)


def _is_plain(given: Settlement) -> bool:
    """Whether an answer has no more than a reason and a delay, and every value has exactly the right type."""
    reason, detail, delay = given.reason, given.detail, given.delay
    return (
        type(given.outcome) is Outcome
        and given.to is None
        and given.who is None
        and given.front is None
        and given.counted is None
        and type(given.awaits) is int
        and given.awaits == 0
        and type(given.whole) is bool
        and type(given.consumer) is str
        and (reason is None or (type(reason) is str and reason.isascii()))
        and (detail is None or (type(detail) is str and detail.isascii()))
        and (delay is None or (type(delay) is int and 0 <= delay < DAY))
    )


def message_name(message: str | int) -> str | int:
    """An id or an offset."""
    if isinstance(message, str):
        if len(message) > MAX_NAME_BYTES:
            raise NotFound(f"there is no message {shown(message)}; an id has at most {MAX_NAME_BYTES} bytes")
        return read_text("the id of a message", message)
    if isinstance(message, bool) or not isinstance(message, int):
        raise InvalidOption(f"a message is named by its id or its offset, not {shown(message)}")
    if not 0 <= message < 1 << 62:
        raise NotFound(f"there is no message {shown(message)}; it may have been collected after its retention")
    return int(message)


def wait_seconds(timeout: Duration | None) -> float | None:
    """How long to wait, in seconds; None is for ever."""
    return None if timeout is None else read_duration("timeout", timeout) / SECOND


def _choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidOption(f"{name} must be one of {', '.join(choices)}; not {shown(value)}")
    return value


def check_delivery(given: Any) -> None:
    """Refuse what is not a delivery. Whether it is still held, the queue decides."""
    if not isinstance(getattr(given, "queue", None), str) or not hasattr(given, "lease"):
        raise InvalidOption(f"delivery must be one that was received or pulled, not {shown(given)}")
