"""What comes to CAP's exchange and is no message of CAP's: it is set aside as Invalid, once (M3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from remuda.amqp import cap
from remuda.broker.port import AsyncBroker
from remuda.bus.publishing import headers as names
from remuda.model.message import Message
from remuda.model.messages import cell
from remuda.model.queues.system_queues import UNROUTED
from remuda.server.amqp.messages.inbound import Facts
from remuda.server.amqp.protocol.request_reader import Publications


class Sorted(msgspec.Struct):
    """Publications to CAP's exchange: those of CAP's, with their rows, and what is set aside."""

    publications: list[Publications] = []
    rows: list[int] = []
    invalid: list[Message] = []


def sort(publications: Sequence[Publications], facts: Callable[[bytes], Facts]) -> Sorted:
    found, first = Sorted(), 0
    for one in publications:
        problems = [cap.problem_of(facts(one.properties_of(row)).headers) for row in range(len(one.bodies))]
        kept = [row for row, problem in enumerate(problems) if problem is None]
        if kept:
            taken = _rows_of(one, kept) if len(kept) < len(problems) else one
            found.publications.append(taken)
            found.rows += [first + row for row in kept]
        found.invalid += [
            _invalid(one, row, problem, facts) for row, problem in enumerate(problems) if problem is not None
        ]
        first += len(problems)
    return found


async def set_aside(broker: AsyncBroker, messages: Sequence[Message]) -> None:
    """Keep what `sort` found to be invalid; also where no bus runs, which would do the same with what waits there."""
    await broker.publish(messages, queue=UNROUTED, raise_refusals=False)
    delivery = await broker.pull(UNROUTED, len(messages), newest=True)
    if delivery is None:
        return
    problems = [cell(delivery.messages.headers, row).get(names.INVALID) for row in range(len(delivery))]
    for problem in dict.fromkeys(problems):
        rows = [row for row, one in enumerate(problems) if one == problem]
        if problem is None:
            await delivery.release(rows)
        else:
            await delivery.invalid(rows, reason=problem)


def _rows_of(one: Publications, rows: Sequence[int]) -> Publications:
    return Publications(one.method, [one.properties_of(row) for row in rows], [one.bodies[row] for row in rows])


def _invalid(one: Publications, row: int, problem: str, facts: Callable[[bytes], Facts]) -> Message:
    raw = one.properties_of(row)
    known = facts(raw)
    headers: Mapping[str, str] = {**known.headers, names.INVALID: problem}
    return Message(
        one.method.routing_key or "remuda.foreign", one.bodies[row], known.id, mime_type=known.mime_type,
        headers=headers, wire=raw,
    )  # fmt: skip
