"""Compares what is with what ought to be."""

from __future__ import annotations

from typing import Any

from remuda.broker.embedded.engine import Engine
from remuda.core.core import Core
from remuda.core.flow.keys import number_of
from remuda.core.queues.queue import CONSUMING, Queue
from remuda.core.queues.ready import NEVER
from remuda.model.queues.options import Acknowledge, QueueType
from tests.simulation import flow
from tests.simulation.model import PARKED, Credit, Entry, Model, QueueModel, Violation, require

View = dict[str, Any]
"""A queue's whole state, message by message."""


def _join(lines: dict[tuple[int, bool], list[int]], level: tuple[int, bool], offset: int) -> None:
    line = lines.setdefault(level, [])
    line.append(offset)
    if level[1]:
        line.sort()


def core_view(queue: Queue, time: int) -> View:
    """A queue of the core. Scheduled messages that are due by `time` count as waiting."""
    lines: dict[tuple[int, bool], list[int]] = {}
    deadlines = {}
    for priority, front, level in queue.ready.levels():
        for first, count, deadline in level.runs():
            for offset in range(first, first + count):
                lines.setdefault((priority, front), []).append(offset)
                deadlines[offset] = deadline
    attempts = {offset: (queue.attempts.get(offset, 0), offset in queue.attempts) for offset in deadlines}
    delayed = {}
    due = []
    for piece in queue.delayed:
        for offset in range(piece.first, piece.end):
            if piece.state.value == "Q" and (piece.due <= time or piece.order):
                due.append((piece.due, piece.order, offset, piece))
            else:
                delayed[offset] = (
                    piece.state.value, piece.due, max(piece.attempt, 0), piece.front, piece.priority, piece.deadline,
                    piece.redelivered,
                )  # fmt: skip
    for _, _, offset, piece in sorted(due, key=lambda item: item[:3]):
        _join(lines, (piece.priority, piece.front), offset)
        deadlines[offset] = piece.deadline
        attempts[offset] = (max(piece.attempt, 0), piece.redelivered)
    return {
        "status": queue.status,
        "options": queue.options,
        "lines": lines,
        "deadlines": deadlines,
        "attempts": attempts,
        "delayed": delayed,
        "flying": {
            offset: (piece.attempt, piece.priority, piece.deadline, piece.redelivered)
            for piece in queue.flights
            if piece.state.value == "F"
            for offset in range(piece.first, piece.end)
        },
        "parked": {
            offset: (piece.state.value, piece.reason, piece.priority)
            for piece in queue.parked
            for offset in range(piece.first, piece.end)
        },
        "ids": {offset: text for text, offset in queue.offset_of.items() if not _confirmed(queue, offset)},
        "counts": {state.value: count for state, count in queue.counts.items() if count},
    }


def model_view(queue: QueueModel, time: int) -> View:
    entries = queue.entries
    lines = {level: list(line) for level, line in queue.lines.items() if line}
    due = [at for at in queue.later if entries[at].due <= time]
    for offset in sorted(due, key=lambda at: (entries[at].due, at)):
        entry = entries[offset]
        _join(lines, (entry.priority, entry.ahead), offset)
    waiting = [offset for line in lines.values() for offset in line]
    delayed = {offset: entries[offset] for offset in queue.delayed() if offset not in due}
    return {
        "status": queue.status,
        "options": queue.options,
        "lines": lines,
        "deadlines": {offset: entries[offset].deadline for offset in waiting},
        "attempts": {offset: (entries[offset].attempt, entries[offset].redelivered) for offset in waiting},
        "delayed": {
            at: (one.state, one.due, one.attempt, one.ahead, one.priority, one.deadline, one.redelivered)
            for at, one in delayed.items()
        },
        "flying": {
            at: (one.attempt, one.priority, one.deadline, one.redelivered)
            for at, one in entries.items()
            if one.state == "F"
        },
        "parked": {at: (one.state, one.reason, one.priority) for at, one in entries.items() if one.state in PARKED},
        "ids": {at: text for at, text in queue.ids.items() if entries[at].state != "S"},
        "counts": {state: count for state, count in queue.counts.items() if count},
    }


def compare(core: Core, model: Model, time: int, *, ordered: bool = True) -> None:
    """The core holds exactly what its records tell; the order of what waits may be left out of it."""
    require(
        sorted(core.queues) == sorted(model.queues), f"the queues are {sorted(core.queues)}, not {sorted(model.queues)}"
    )
    found = {name: (one.kind, list(one.bindings)) for name, one in core.routing.exchanges.items()}
    require(found == model.exchanges, f"Q18: the exchanges are {found}, not {model.exchanges}")
    turns = {name: one.turn for name, one in core.routing.exchanges.items() if one.turn}
    expected_turns = {name: turn for name, turn in model.turns.items() if turn}
    require(turns == expected_turns, f"Q18: the turns are {turns}, not {expected_turns}")
    for name, queue in core.queues.items():
        expected = model.queues[name]
        _follow_partial_confirmations(queue, expected)
        views = core_view(queue, time), model_view(expected, time)
        if expected.options.takes_turns:
            ignore_lines(*views)
        if not ordered:
            for view in views:
                view["lines"] = {level: sorted(line) for level, line in view["lines"].items()}
        difference = differs(*views)
        require(not difference, f"queue {name!r} differs from its records: {difference}")
        check_times(queue)
        require(
            queue.size == expected.size, f"queue {name!r} counts {queue.size} messages where there are {expected.size}"
        )


def ignore_lines(*views: View) -> None:
    """Where there is a line for each key, leave out how the lines stand to each other."""
    for view in views:
        view["lines"] = {"all": sorted(at for line in view["lines"].values() for at in line)}


def check_times(queue: Queue) -> None:
    """What a queue knows of its next deadline is true."""
    all_soonest = NEVER
    for priority, _, lane in queue.ready.levels():
        soonest = min((deadline for _, _, deadline in lane.runs()), default=NEVER)
        where = f"lane {priority} of queue {queue.name!r}"
        require(lane.soonest == soonest, f"Q5: {where} expects an end at {lane.soonest}, not at {soonest}")
        all_soonest = min(all_soonest, soonest)
    right = queue.ready.soonest <= all_soonest if queue.keyed is not None else queue.ready.soonest == all_soonest
    require(right, f"Q5: queue {queue.name!r} expects an end at {queue.ready.soonest}")
    due = min((min(piece.due, piece.deadline) for piece in queue.delayed), default=NEVER)
    require(queue.delayed.soonest <= due, f"B14: queue {queue.name!r} looks late for what is due at {due}")


def differs(found: View, expected: View) -> str:
    """Where two views differ, for people; empty where they do not."""
    parts = []
    for field in expected:
        if found[field] != expected[field]:
            if isinstance(expected[field], dict):
                keys = sorted({*found[field], *expected[field]})
                odd = [key for key in keys if found[field].get(key) != expected[field].get(key)]
                text = ", ".join(f"{key}: {found[field].get(key)} not {expected[field].get(key)}" for key in odd[:4])
                parts.append(f"{field} {{{text}}}")
            else:
                parts.append(f"{field}: {found[field]} not {expected[field]}")
    return "; ".join(parts)


def adopt(core: Core, model: Model) -> None:
    """Take the core's word for where live messages are, after it was found good enough."""
    model.exchanges = {name: (one.kind, list(one.bindings)) for name, one in core.routing.exchanges.items()}
    model.turns = {name: one.turn for name, one in core.routing.exchanges.items()}
    for name in [name for name in model.queues if name not in core.queues]:
        del model.queues[name]
    for name, queue in core.queues.items():
        old = model.queues.get(name)
        model.queues[name] = adopted = _adopted(queue, old)
        if not adopted.spent.known and queue.keyed is not None:
            texts = {flow.key_in(queue.options, message) for message in model.messages.values()} - {None}
            marks = {key.number: key.mark for key in queue.keyed.known() if key.mark}
            adopted.spent.marks = {text: marks[at] for text in texts if text and (at := number_of(text)) in marks}


def _adopted(queue: Queue, old: QueueModel | None) -> QueueModel:
    queue.release_due(-1)  # what others stand behind, and only that
    view = core_view(queue, -1)
    fresh = QueueModel(queue.name, queue.options, queue.status)
    fresh.had_messages = queue.had_messages
    fresh.counts.update(view["counts"])
    fresh.ids = dict(view["ids"])
    fresh.names = dict(queue.id_of)
    fresh.lines = {level: list(line) for level, line in view["lines"].items()}
    if queue.keyed is not None:
        singles = list(queue.keyed.singles.offsets())
        fresh.lines = {(0, queue.keyed.rules.holds): singles} if singles else {}
        for key in queue.keyed.known():  # in the order within each key
            for priority, front, level in key.line.levels() if key.line is not None else ():
                line = fresh.lines.setdefault((priority, front), [])
                line += [at for first, count, _ in level.runs() for at in range(first, first + count)]
    for (priority, front), line in view["lines"].items():
        for offset in line:
            attempt, again = view["attempts"][offset]
            deadline = view["deadlines"][offset]
            fresh.entries[offset] = Entry("Q", priority, deadline, attempt=attempt, ahead=front, redelivered=again)
    for offset, (state, due, attempt, ahead, priority, deadline, again) in view["delayed"].items():
        if state == "Q":
            fresh.later.add(offset)
        fresh.entries[offset] = Entry(state, priority, deadline, due, attempt, ahead, redelivered=again)
    for offset, (attempt, priority, deadline, again) in view["flying"].items():
        fresh.entries[offset] = Entry("F", priority, deadline, attempt=attempt, redelivered=again)
    for offset, (state, reason, priority) in view["parked"].items():
        fresh.entries[offset] = Entry(state, priority, reason=reason)
    fresh.spent.known = False
    if old is not None:
        # What had gone on to another queue may be back, where that was not synced before the power was lost.
        fresh.ended = {offset: state for offset, state in old.ended.items() if offset not in fresh.entries}
        fresh.spent = old.spent
        fresh.spent.restarted()
    return fresh


def check_numbers(engine: Engine, model: Model) -> None:
    """Offsets and positions are dense: the log, the core and the records agree on the next ones."""
    recorder, log = engine.core.recorder, engine.log
    require(
        recorder.next_offset == log.next_offset == model.next_offset,
        f"the next offset is {recorder.next_offset} in the core, {log.next_offset} in the log, "
        f"{model.next_offset} by count",
    )
    require(
        recorder.next_position == log.next_position == model.next_position,
        f"the next position is {recorder.next_position} in the core, {log.next_position} in the log, "
        f"{model.next_position} by count",
    )


def check_time(model: Model) -> None:
    """After a tick nothing is overdue."""
    for queue in model.queues.values():
        for offset, entry in queue.entries.items():
            where = f"{queue.name}: message {offset}"
            lease = queue.leases.get(entry.lease)
            if entry.state == "F" and lease is not None:
                require(lease.deadline > model.now, f"Q3: {where} is held beyond its answer's time {lease.deadline}")
            elif entry.state == "R":
                require(entry.due > model.now, f"Q9: {where} was due at {entry.due} and still waits for a retry")
            if entry.state in "QR":
                require(entry.deadline > model.now, f"Q5: {where} is beyond its deadline {entry.deadline}")


def check_flow(core: Core, model: Model, window: int, *, ticked: bool) -> None:
    """No message waits while someone is free to take it, and nobody is sent more than allowed."""
    for queue in model.queues.values():
        options = queue.options
        if queue.status not in CONSUMING or options.delay_between_messages or not queue.waiting:
            continue
        if options.has_flow and not flow.may_go(model, queue, core.recorder.now, ticked=ticked):
            continue
        waits = options.acknowledge is Acknowledge.WAIT
        if core.queues[queue.name].waiters:
            raise Violation(f"{queue.name}: someone pulls while {queue.waiting[:5]} wait")
        if not waits:
            free = [name for name in queue.consumers if under_way(queue, name) < window]
        elif options.type is QueueType.PUSH:
            busy = any(
                lease.silent and queue.held(number) for number, lease in queue.leases.items() if not lease.pulled
            )
            free = [] if busy else queue.consumers
        else:
            free = [
                name for name in queue.consumers if in_hands(model, queue.credits[name]) < queue.credits[name].limit
            ]
        if options.type is QueueType.PUSH and len(free) < len(queue.consumers):
            free = []
        if free:
            raise Violation(f"{queue.name}: {free} are free while {queue.waiting[:5]} wait")


def in_hands(model: Model, credit: Credit) -> int:
    """Q2: the messages that await an answer of those who share this credit."""
    return sum(
        len(queue.held(number))
        for queue in model.queues.values()
        for number, lease in queue.leases.items()
        if not lease.pulled and not lease.sent
        for name in lease.silent
        if queue.credits.get(name) is credit
    )


def under_way(queue: QueueModel, consumer: str) -> int:
    """Q2: the messages sent ahead to a consumer that it has not taken yet."""
    return sum(lease.sent for lease in queue.leases.values() if consumer in lease.awaited)


def check_limits(before: dict[str, int], model: Model) -> None:
    """Q6: a queue never holds more than its limit, unless the limit was lowered below what it held."""
    for name, queue in model.queues.items():
        limit = queue.options.message_limit
        if limit and queue.size > limit:
            allowed = max(limit, before.get(name, 0))
            require(queue.size <= allowed, f"Q6: queue {name!r} holds {queue.size} messages, its limit is {limit}")


def _follow_partial_confirmations(queue: Queue, expected: QueueModel) -> None:
    """A message confirmed too seldom leaves its flight when its delivery ends, which no record tells."""
    flying = {offset for piece in queue.flights if piece.state.value == "S" for offset in range(piece.first, piece.end)}
    for offset, entry in expected.entries.items():
        if entry.state == "S" and offset not in flying:
            expected.ids.pop(offset, None)
            expected.ended[offset] = "S"
    for offset in expected.ended:
        expected.entries.pop(offset, None)


def _confirmed(queue: Queue, offset: int) -> bool:
    piece = queue.flights.holding(offset)
    return piece is not None and piece.state.value == "S"
