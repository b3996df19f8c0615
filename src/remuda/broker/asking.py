"""What both faces of a broker make of their arguments, and of a receipt."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from remuda.core.receipts import Receipt
from remuda.model.errors import InvalidMessage, InvalidOption, PartlyRefused
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.options import QueueOptions

CLEAR_AFTER = ("none", "all", "priority", "regular")

_numbers = itertools.count(1)
_own = threading.local()


def as_batch(messages: Message | Messages | Sequence[Message]) -> Messages:
    if isinstance(messages, Messages):
        return messages
    rows = [messages] if isinstance(messages, Message) else list(messages)
    for row in rows:
        if not isinstance(row, Message):
            raise InvalidMessage(f"publish takes messages, not {type(row).__name__}; nothing was stored")
    return Messages.of(rows)


def consumer_name(given: str | None) -> str:
    """The name given, or one that no other consumer of this machine has."""
    return given or f"{os.getpid()}-{threading.current_thread().name}-{next(_numbers)}"


def puller_name(given: str | None) -> str:
    """The name given, or one for this thread: a pull needs no name of its own, only one to be known by."""
    if given:
        return given
    if getattr(_own, "process", None) != os.getpid():
        _own.process, _own.name = os.getpid(), f"{os.getpid()}-{threading.current_thread().name}"
    name: str = _own.name
    return name


def queue_options(options: QueueOptions | Mapping[str, Any] | None, more: Mapping[str, Any]) -> Any:
    """Options as they may be given to create a queue: an object, a mapping, or names."""
    if not more:
        return options
    if isinstance(options, QueueOptions):
        return options.changed(more)
    return {**(options or {}), **more}


def channel_options(topics: Iterable[str], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """A channel is a queue that is fed by topic prefixes and belongs to one subscriber, unless it says otherwise."""
    prefixes = [topics] if isinstance(topics, str) else list(topics)
    if not prefixes:
        raise InvalidOption("a channel needs at least one topic prefix; '*' takes everything")
    return {"type": "round-robin", "client_limit": 1, **(options or {}), "topics": prefixes}


def check_clear_after(clear_after: str) -> str:
    if clear_after not in CLEAR_AFTER:
        raise InvalidOption(f"clear_after must be one of {', '.join(CLEAR_AFTER)}; not {clear_after!r}")
    return clear_after


def report_refusals(receipt: Receipt) -> None:
    """Raise the refusal of a single message as it is, of a batch as one error that says how many."""
    refusals = receipt.refusals
    if not refusals:
        return
    first = next(iter(refusals.values()))
    if len(receipt) == 1:
        raise first
    text = f"{len(refusals)} of {len(receipt)} messages were refused, the others are stored. The first: {first}"
    raise PartlyRefused(text, receipt)
