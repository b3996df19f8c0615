"""Verbs as people ask for them: a queue, who asks, and the values of the verb's parameters by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remuda.bus.broker_api import Broker
from remuda.bus.publishing.waiting import WaitingFilter, clear_waiting
from remuda.model.operations.results import QueueInfo
from remuda.model.operations.verbs import Verb
from remuda.model.queues.options import Status
from remuda.model.values.texts import counted

_STATUSES = {
    Status.RUNNING: "is running",
    Status.ONLY_PUBLISH: "is paused; it still accepts messages",
    Status.ONLY_CONSUME: "refuses publishers",
    Status.PAUSED: "is paused and refuses publishers",
}


def carry_out(broker: Broker, verb: Verb, queue: str, who: str, values: Mapping[str, Any]) -> int | None:
    """Carry out a verb. Returns how many messages it took, if it takes messages."""
    for parameter in verb.parameters:
        if parameter.is_queue and parameter.name in values:
            broker.queue(values[parameter.name])  # a typing error creates no queue
    if verb.name == "clear" and values:
        return clear_waiting(broker, queue, WaitingFilter(**values), who)
    result: int | None = getattr(broker, verb.name)(queue, **values, who=who)
    return result


def outcome_text(broker: Broker, verb: Verb, queue: str, values: Mapping[str, Any], count: int | None) -> str:
    """What was done, for people."""
    status = "" if verb.counts else _STATUSES.get(broker.queue(queue).status, "")
    return verb.done.format(
        queue=queue, status=status, messages=counted(count or 0, "message"),
        dead_letters=counted(count or 0, "dead letter"), **{"to": "", **values},
    )  # fmt: skip


def question(verb: Verb, info: QueueInfo, some: bool) -> str | None:
    """What to ask before a verb is carried out, for all of its messages or for those that match; None if it asks
    nothing, or there are none."""
    parked, waiting = info.dead + info.invalid + info.not_interested, info.waiting + info.delayed
    number = parked if "{dead_letters}" in verb.asks else waiting
    if not verb.asks or not number:
        return None
    those = "those that match of " if some else ""
    return verb.asks.format(
        queue=info.name, dead_letters=those + counted(parked, "dead letter"),
        waiting_messages=those + counted(waiting, "waiting message"),
    )  # fmt: skip
