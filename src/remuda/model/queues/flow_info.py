"""What a queue's rules of flow hold back, and why, at one moment (F7)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

FLOW_KEY: Final = "remuda-flow-key"
"""The header of a message that has another key for its queues' rules than its own."""
FLOW_WEIGHT: Final = "remuda-flow-weight"
"""The header of a message that counts as several for the rates of its queues."""
FLOW_CONCURRENCY: Final = "remuda-flow-concurrency"
"""The header of a message that says how many of its key may be in flight, where a queue limits that."""
HEAVIEST: Final = 1_000_000
"""The most that these headers may say."""


def key_header(flow_key: str) -> str | None:
    """The header that has the key by which a queue counts, by its `flow_key`; None for the messages' own key."""
    kind, _, name = flow_key.partition(":")
    return None if not name else name if kind == "header" else body_header(name)


def body_header(path: str) -> str:
    """The header that keeps what was found there in the body, when the message was published."""
    return f"remuda-body:{path}"


def flow_key_of(header: str | None, key: str | None, headers: Mapping[str, str]) -> str | None:
    """The key of one message; None if it has none."""
    own = headers.get(FLOW_KEY) if headers else None
    if own is not None:
        return own
    return key if header is None else headers.get(header)


class HeldBy(StrEnum):
    """Why nothing goes out."""

    NOTHING = ""
    CONCURRENCY = "concurrency"
    """All slots are used."""
    RATE = "rate"
    LIMIT = "limit"
    """A limit shared with other queues is used up."""
    RETRY = "retry"
    """A message of the key is to be tried again."""
    PAUSE = "pause"
    """An operator paused the key."""


class KeyInfo(msgspec.Struct, frozen=True):
    """What one key has waiting and in flight, and what holds it."""

    key: str | None
    """None for messages without a key, and where it cannot be read."""
    waiting: int
    in_flight: int
    delayed: int = 0
    held_by: HeldBy = HeldBy.NOTHING
    since: int | None = None
    """Since when it is held, in microseconds."""
    until: int | None = None
    """When it goes on, where only time must go by."""


class FlowInfo(msgspec.Struct, frozen=True):
    """What a queue as a whole waits for, and its keys with most waiting."""

    held_by: HeldBy = HeldBy.NOTHING
    until: int | None = None
    """When the queue goes on, where only time must go by."""
    keys: int = 0
    """How many keys have messages that wait or are in flight."""
    held: int = 0
    """How many keys have messages that wait and cannot go now."""
    opens: int | None = None
    """When something changes by itself: a rate lets more go out, or a pause ends. It may be a little early."""
    waiting: dict[HeldBy, int] = {}
    """How many messages wait for what; under `NOTHING`, those that may go as soon as somebody takes them."""
    top: list[KeyInfo] = []
    """The keys with most waiting, most first."""
