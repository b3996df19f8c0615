"""Chains and groups as values: built, nested, and published in one call (G1)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from remuda.bus.publishing import bodies
from remuda.bus.publishing.message_checks import check_target
from remuda.model.errors import InvalidOption
from remuda.model.values.texts import read_count, shown

NO_BODY: Final = msgspec.UNSET


class Call(msgspec.Struct, frozen=True, tag="call"):
    """One message, handled by whoever subscribes to its topic."""

    topic: str
    body: bytes | None = None
    """None: it gets what came before it in its chain."""
    mime_type: str = bodies.JSON


class Chain(msgspec.Struct, frozen=True, tag="chain"):
    """One after the other; each gets the result of the one before."""

    parts: tuple[Work, ...]


class Group(msgspec.Struct, frozen=True, tag="group"):
    """Side by side. Its result is the list of results, in this order."""

    members: tuple[Work, ...]
    policy: str | int = "all"
    """How many must succeed: all, any, or at least this many."""


Work = Call | Chain | Group


def call(topic: str, body: Any = NO_BODY) -> Call:
    """A message in a chain or a group. Without a body, it gets the result of the part before it."""
    check_target("topic", topic)
    if body is NO_BODY:
        return Call(topic)
    return Call(topic, *bodies.encode(body))


def chain(*parts: Work | str) -> Chain:
    """Messages one after the other, each published with the result of the one before."""
    if not parts:
        raise InvalidOption("a chain needs at least one part")
    return Chain(tuple(_work(part) for part in parts))


def group(*members: Work | str, policy: str | int = "all") -> Group:
    """Messages side by side. `policy` is how many must succeed: `all`, `any`, or a number."""
    return Group(tuple(_work(member) for member in members), read_policy(policy, len(members)))


def gather(members: Group, then: Work | str) -> Chain:
    """A group, and what gets the list of its results when all have ended."""
    if not isinstance(members, Group):
        raise InvalidOption(f"gather takes a group, not {shown(members)}: gather(group(…), then='report')")
    return chain(members, then)


def read_policy(policy: str | int, members: int) -> str | int:
    if policy in ("all", "any"):
        return policy
    if isinstance(policy, str):
        raise InvalidOption(f"policy must be 'all', 'any' or a number of members, not {shown(policy)}")
    return read_count("policy", policy, 0, max(members, 0))


def bound(work: Work, body: bytes, mime_type: str) -> Work:
    """The same work with what came before it: for its first part, and for each of a group's members."""
    match work:
        case Call(topic, None):
            return Call(topic, body, mime_type)
        case Chain((first, *others)):
            return Chain((bound(first, body, mime_type), *others))
        case Group(members, policy):
            return Group(tuple(bound(one, body, mime_type) for one in members), policy)
    return work


def _work(part: Any) -> Work:
    if isinstance(part, str):
        return call(part)
    if not isinstance(part, Call | Chain | Group):
        raise InvalidOption(f"a part must be a topic, call(…), chain(…) or group(…), not {shown(part)}")
    return part


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Work).decode


def to_bytes(work: Work) -> bytes:
    return _encode(work)


def from_bytes(data: bytes) -> Work:
    work: Work = _decode(data)
    return work
