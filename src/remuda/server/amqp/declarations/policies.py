"""Policies: settings for all queues and exchanges of a vhost whose name matches a pattern, as in RabbitMQ.

Of the policies that match, the one of the highest priority counts. What a queue was declared with stays: of two limits,
the lower one counts; otherwise the queue's own argument does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.values.texts import shown
from remuda.server.amqp.declarations.arguments import why_impossible
from remuda.server.amqp.declarations.exchanges import ExchangeDeclaration
from remuda.server.amqp.declarations.queues import QueueDeclaration

_LOWER: Final = frozenset(
    {"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit", "consumer-timeout"}
)
_OF_QUEUES: Final = _LOWER | {"overflow", "dead-letter-exchange", "dead-letter-routing-key", "max-age"}
_ALTERNATE: Final = "alternate-exchange"
WITHOUT_EFFECT: Final = frozenset(
    {
        "ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure",
        "queue-mode", "queue-version", "queue-master-locator", "queue-leader-locator", "max-in-memory-length",
        "max-in-memory-bytes", "dead-letter-strategy", "target-group-size", "stream-max-segment-size-bytes",
    }
)  # fmt: skip
"""Settings of a cluster, or of how RabbitMQ stores: accepted, and without a meaning here."""
SETTINGS: Final = _OF_QUEUES | WITHOUT_EFFECT | {_ALTERNATE}
APPLY_TO: Final = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """One policy of a vhost."""

    name: str
    pattern: str
    definition: dict[str, Any]
    apply_to: str = "all"
    priority: int = 0

    def applies_to(self, name: str, *kinds: str) -> bool:
        return self.apply_to in ("all", *kinds) and re.search(self.pattern, name) is not None


def read_policy(name: str, given: Mapping[str, Any]) -> Policy:
    """A policy as the management API takes it, checked."""
    pattern, definition = given.get("pattern"), given.get("definition")
    priority, apply_to = given.get("priority", 0), given.get("apply-to") or "all"
    if not isinstance(pattern, str) or not isinstance(definition, Mapping) or not definition:
        raise InvalidOption("a policy needs a pattern, and a definition that is not empty")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidOption(f"the pattern {shown(pattern)} is not a regular expression: {error}") from None
    if isinstance(priority, str) and priority.lstrip("-").isdecimal():
        priority = int(priority)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidOption(f"priority must be a whole number, not {shown(priority)}")
    if apply_to not in APPLY_TO:
        raise InvalidOption(f"apply-to must be one of {', '.join(APPLY_TO)}; not {shown(apply_to)}")
    unknown = sorted(set(definition) - SETTINGS)
    if unknown:
        raise InvalidOption(f"not recognised as policy settings: {', '.join(map(shown, unknown))}")
    for setting, value in definition.items():
        why = why_impossible(f"x-{setting}", value)
        if why is not None or (setting.endswith("-exchange") and not isinstance(value, str)):
            raise InvalidOption(f"{setting} cannot be {shown(value)}")
    return Policy(name, pattern, dict(definition), str(apply_to), priority)


def policy_of_queue(policies: Iterable[Policy], name: str, declaration: QueueDeclaration) -> Policy | None:
    """The policy that counts for a queue."""
    kind = {"quorum": "quorum_queues", "stream": "streams", "classic": "classic_queues"}[declaration.type]
    return _highest(one for one in policies if one.applies_to(name, "queues", kind))


def policy_of_exchange(policies: Iterable[Policy], name: str) -> Policy | None:
    return _highest(one for one in policies if one.applies_to(name, "exchanges"))


def with_policy(declaration: QueueDeclaration, policy: Policy | None) -> QueueDeclaration:
    """A queue's declaration as it is in force."""
    if policy is None:
        return declaration
    arguments = dict(declaration.arguments)
    for setting, value in policy.definition.items():
        argument = f"x-{setting}"
        if setting not in _OF_QUEUES:
            continue
        if argument not in arguments or (setting in _LOWER and value < arguments[argument]):
            arguments[argument] = value
    return msgspec.structs.replace(declaration, arguments=arguments)


def alternate_of(declaration: ExchangeDeclaration, policy: Policy | None) -> str | None:
    """The alternate exchange that is in force."""
    own = declaration.alternate
    return own if own is not None or policy is None else policy.definition.get(_ALTERNATE)


def _highest(matching: Iterable[Policy]) -> Policy | None:
    return max(matching, key=lambda one: (one.priority, one.name), default=None)
