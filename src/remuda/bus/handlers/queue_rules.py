"""Options of a queue, written where its handler is, or on the type of its messages (B21)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from remuda.model.queues.options import QueueOptions, QueueRuleKwargs

Rules = tuple[tuple[str, Any], ...]
"""Options as they were written, by name."""


_NAMES: Final = frozenset(QueueRuleKwargs.__annotations__)
_QUEUES: Final = ("expired_queue", "dead_letter_queue")


def read_rules(given: Mapping[str, Any]) -> Rules:
    """The options of the queue among these, checked."""
    found = {name: value for name, value in given.items() if name in _NAMES}
    if found:
        QueueOptions.parse(found)
    return tuple(sorted(found.items()))


def with_prefix(rules: Rules, prefix: str) -> Rules:
    """The queues that rules name, as they are called at a broker that several applications share."""
    return tuple((name, prefix + value if name in _QUEUES and value else value) for name, value in rules)
