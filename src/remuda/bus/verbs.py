"""Verbs as people ask for them: a queue, who asks, and the values of the verb's parameters by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from remuda.bus.broker_api import Broker
from remuda.bus.publishing.waiting import WaitingFilter, clear_waiting
from remuda.model.errors import NotFound
from remuda.model.operations.results import QueueInfo
from remuda.model.operations.verbs import Verb
from remuda.model.queues.options import Status
from remuda.model.queues.system_queues import is_own
from remuda.model.values.texts import counted

_STATUSES = {
    Status.RUNNING: ("is running", "are running"),
    Status.ONLY_PUBLISH: ("is paused; it still accepts messages", "are paused; they still accept messages"),
    Status.ONLY_CONSUME: ("refuses publishers", "refuse publishers"),
    Status.PAUSED: ("is paused and refuses publishers", "are paused and refuse publishers"),
}
"""What is said of one queue and of several."""


def like(pattern: str, name: str) -> bool:
    """Whether a queue's name is meant: * stands for any characters, and means none of the bus's own queues."""
    if name == pattern:
        return True
    parts = map(re.escape, pattern.split("*"))
    return "*" in pattern and not is_own(name) and re.fullmatch(".*".join(parts), name, re.DOTALL) is not None


def queues_like(broker: Broker, name: str) -> list[str]:
    """The queue of this name, or those that a name with * means."""
    if "*" not in name:
        return [broker.queue(name).name]
    names = [info.name for info in broker.queues()]
    found = [name] if name in names else [one for one in names if like(name, one)]
    if not found:
        raise NotFound(f"no queue is named like {name!r}; nothing was done")
    return found


def carry_out(broker: Broker, verb: Verb, queues: Sequence[str], who: str, values: Mapping[str, Any]) -> int | None:
    """Carry out a verb on one queue or several. Returns how many messages it took, if it takes messages."""
    targets = {values[one.name] for one in verb.parameters if one.is_queue and one.name in values}
    for target in targets:
        broker.queue(target)  # a typing error creates no queue
    if len(queues) > 1:
        queues = [queue for queue in queues if queue not in targets]
    counts = [_carry_out(broker, verb, queue, who, values) for queue in queues]
    return sum(count or 0 for count in counts) if verb.counts else None


def _carry_out(broker: Broker, verb: Verb, queue: str, who: str, values: Mapping[str, Any]) -> int | None:
    if verb.name == "clear" and values:
        return clear_waiting(broker, queue, WaitingFilter(**values), who)
    result: int | None = getattr(broker, verb.name)(queue, **values, who=who)
    return result


def outcome_text(
    broker: Broker, verb: Verb, queues: Sequence[str], values: Mapping[str, Any], count: int | None
) -> str:
    """What was done, for people."""
    status = "" if verb.counts else _STATUSES.get(broker.queue(queues[0]).status, ("", ""))[len(queues) > 1]
    return verb.done.format(
        queue=_called(queues), status=status, messages=counted(count or 0, "message"),
        dead_letters=counted(count or 0, "dead letter"), **{"to": "", **values},
    )  # fmt: skip


def _called(queues: Sequence[str]) -> str:
    return queues[0] if len(queues) == 1 else counted(len(queues), "queue")


def question(verb: Verb, infos: Iterable[QueueInfo], some: bool) -> str | None:
    """What to ask before a verb is carried out, for all messages of these queues or for those that match; None if it
    asks nothing, or there are none."""
    numbers = [(one.name, one.dead + one.invalid + one.not_interested, one.waiting + one.delayed) for one in infos]
    which = 1 if "{dead_letters}" in verb.asks else 2
    asked = [one for one in numbers if one[which]]
    if not verb.asks or not asked:
        return None
    parked, waiting = sum(one[1] for one in asked), sum(one[2] for one in asked)
    those = "those that match of " if some else ""
    return verb.asks.format(
        queue=_called([one[0] for one in asked]), dead_letters=those + counted(parked, "dead letter"),
        waiting_messages=those + counted(waiting, "waiting message"),
    )  # fmt: skip
