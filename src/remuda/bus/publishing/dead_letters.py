"""Messages that ended without success, and how operators choose among them."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from remuda.bus.broker_api import MessageFilter, Parked
from remuda.bus.publishing.message_checks import Moment, moment
from remuda.model.document import Document, QueueView
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.model.state import State
from remuda.model.values.option_reading import check_keywords
from remuda.model.values.texts import shown


class FilterKwargs(TypedDict, total=False):
    """Filters: `reason` is a part of the reason, `since` and `until` limit when they ended, `states` are letters."""

    reason: str | None
    since: Moment | None
    until: Moment | None
    states: str | frozenset[State] | None


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that ended without success in one queue."""

    id: str
    topic: str
    state: State
    reason: str
    time: int
    """When it ended, in microseconds since the epoch."""
    attempts: int
    body: bytes
    message: Message
    history: QueueView
    """What happened to it in this queue, with the traceback in `detail` and each attempt in `consumed_by`."""


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


def message_filter(given: FilterKwargs) -> MessageFilter:
    """A filter for dead letters; `states` may be given as letters: E dead, I invalid, N not interested."""
    check_keywords("dead letters", given, FilterKwargs.__annotations__, "filter")
    reason, since, until = given.get("reason"), given.get("since"), given.get("until")
    states = given.get("states")
    if reason is not None and not isinstance(reason, str):
        raise InvalidOption(f"reason must be a string, not {shown(reason)}")
    chosen = MessageFilter(reason=reason, since=0 if since is None else moment("since", since))
    if until is not None:
        chosen = msgspec.structs.replace(chosen, until=moment("until", until))
    if states is not None:
        try:
            chosen = msgspec.structs.replace(chosen, states=frozenset(map(State, states)))
        except (TypeError, ValueError):
            raise InvalidOption(f"states must be letters of E, I and N, not {shown(states)}") from None
    return chosen
