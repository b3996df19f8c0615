"""What ought to be: every message's state in every queue, kept in plain dictionaries and lists.

Slow and simple on purpose. It knows the records of the log and the rules of the contract, and none of the core's code.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from remuda.model.message import Message
from remuda.model.messages import cell
from remuda.model.queues.options import (
    Acknowledge,
    AutoDestroy,
    LimitExceeded,
    Persistence,
    QueueOptions,
    Singleton,
    Status,
)
from remuda.model.queues.routing import ROUTERS, Binding, ExchangeKind
from remuda.model.records import (
    KEY_PAUSED,
    NEVER_DELIVERED,
    Appended,
    Event,
    Events,
    ExchangeChange,
    QueueChange,
    Record,
)
from remuda.model.topics import matches
from tests.simulation import flow

NEVER: Final = (1 << 63) - 1
MOVES: Final = frozenset("LQ LU QF QE FS FK FR FE FI FN FQ RQ RE SX KX EQ IQ NQ".split())
PARKED: Final = frozenset("EIN")
LIVE: Final = frozenset("QFR")


class Violation(AssertionError):
    """Remuda broke its contract."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)


def came_from_another(event: Event) -> bool:
    """Whether a message comes to a queue because it ended in another, or moved on from there."""
    return (event.reason or "").startswith("moved from ")


@dataclass
class Step:
    """One command: what it may cause, and what came of it."""

    text: str
    answered: set[tuple[str, int]] = field(default_factory=set)
    left: set[tuple[str, str]] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    reprocessed: set[str] = field(default_factory=set)
    unreadable: set[tuple[str, int]] = field(default_factory=set)
    moving: set[str] = field(default_factory=set)
    """Queues from which someone moves messages."""
    only: set[int] | None = None
    """The only offsets that may be cleared or moved."""
    handed: set[tuple[str, int]] = field(default_factory=set)
    """Queues and leases of deliveries that are being taken."""
    counted: bool | None = None
    """Whether an answer says that the attempt counts."""
    ticks: bool = False
    resumes: bool = False
    begun: Callable[[int], set[int] | None] = lambda position: None
    """After a restart: of the delivery that an event made, the offsets begun with; None if nobody knows."""
    replays: bool = False
    """Records that were checked when they were made are played again."""
    told: dict[tuple[str, int], str] = field(default_factory=dict)
    """The states each message went through in this step."""
    fetched: dict[tuple[str, int], tuple[str, int, bool]] = field(default_factory=dict)
    """Messages fetched, by queue and offset, with the consumers' names, the attempt, and whether they had it before."""
    fronts: dict[tuple[str, int], bool] = field(default_factory=dict)
    """Of messages put back, whether to the front."""
    moved: dict[tuple[str, int], str] = field(default_factory=dict)
    """Messages that went on to another queue, by that queue and offset, with the queue they left."""
    carried: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Of those that someone moved while they waited: the attempts that counted, and what they were due."""
    deadlines: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of all that went on other than by expiring: when they expire (Q5)."""
    entered: Counter[str] = field(default_factory=Counter)
    """How many messages came into each queue other than by publishing."""
    added: set[tuple[str, str | None]] = field(default_factory=set)
    """Queues and keys of messages that were published."""


@dataclass
class Entry:
    """One message in one queue."""

    state: str
    priority: int
    deadline: int = NEVER
    due: int = 0
    attempt: int = 0
    ahead: bool = False
    lease: int = -1
    consumer: str = ""
    reason: str | None = None
    redelivered: bool = False
    fetched_by: int = -1
    """The position of the event that sent it out last."""


@dataclass
class Credit:
    """How many unanswered messages its consumers may hold together."""

    limit: int
    group: str | None = None


@dataclass
class Lease:
    consumers: tuple[str, ...]
    offsets: list[int]
    deadline: int
    needed: int
    pulled: bool = False
    kicks: bool = False
    sent: int = 0
    """How many were sent ahead."""
    awaited: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    declined: set[str] = field(default_factory=set)

    @property
    def silent(self) -> set[str]:
        return set(self.consumers) - self.confirmed - self.declined

    @property
    def unseen(self) -> bool:
        return bool(self.awaited) and not self.taken


@dataclass
class QueueModel:
    """One queue."""

    name: str
    options: QueueOptions
    status: Status
    entries: dict[int, Entry] = field(default_factory=dict)
    """Live and parked messages."""
    ended: dict[int, str] = field(default_factory=dict)
    """The last state of those that are through."""
    later: set[int] = field(default_factory=set)
    """Queued messages whose time has not come."""
    lines: dict[tuple[int, bool], list[int]] = field(default_factory=dict)
    """Where messages wait: by priority, and whether they were put back to the front."""
    names: dict[int, str] = field(default_factory=dict)
    """Ids of messages that came in while ids had to be unique."""
    ids: dict[int, str] = field(default_factory=dict)
    """Those of them that no other message may have now."""
    counts: Counter[str] = field(default_factory=Counter)
    consumers: list[str] = field(default_factory=list)
    credits: dict[str, Credit] = field(default_factory=dict)
    """Of each consumer; those of one group share one."""
    leases: dict[int, Lease] = field(default_factory=dict)
    had_messages: bool = False
    sent_at: int | None = None
    spent: flow.Spent = field(default_factory=flow.Spent)

    def copy(self) -> QueueModel:
        twin = copy.copy(self)
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, (dict, list, set)):
                setattr(twin, name, copy.copy(value))
        twin.entries = {at: copy.copy(one) for at, one in self.entries.items()}
        twin.lines = {level: list(line) for level, line in self.lines.items()}
        twin.spent = copy.deepcopy(self.spent)
        twin.leases = {number: copy.deepcopy(one) for number, one in self.leases.items()}
        return twin

    @property
    def lanes(self) -> list[list[int]]:
        """The lines in the order of delivery."""
        return [self.lines[level] for level in sorted(self.lines, key=lambda one: (-one[0], not one[1]))]

    @property
    def waiting(self) -> list[int]:
        return [offset for lane in self.lanes for offset in lane]

    def delayed(self) -> list[int]:
        return [at for at, one in self.entries.items() if one.state == "R" or at in self.later]

    def flying(self) -> list[int]:
        return [at for at, one in self.entries.items() if one.state == "F" or (one.state == "S" and one.lease >= 0)]

    def parked(self) -> list[int]:
        return [at for at, one in self.entries.items() if one.state in PARKED]

    @property
    def size(self) -> int:
        return sum(one.state in LIVE or (one.state == "S" and one.lease >= 0) for one in self.entries.values())

    @property
    def is_persistent(self) -> bool:
        return self.options.persistence is Persistence.PERSISTENT

    def lane_of(self, entry: Entry) -> list[int]:
        return self.lines.setdefault((entry.priority, entry.ahead), [])

    def join_line(self, entry: Entry, offset: int) -> None:
        """Behind the others or, put back to the front, where it stood among those."""
        entry.ahead = entry.ahead or (self.options.takes_turns and flow.holds(self.options))
        line = self.lane_of(entry)
        line.append(offset)
        if entry.ahead:
            line.sort()

    def held(self, number: int) -> list[int]:
        """The messages still in flight under a lease."""
        lease = self.leases[number]
        return [at for at in lease.offsets if at in self.entries and self._flies(self.entries[at], number)]

    def end_leases(self, now: int, *, ticks: bool) -> None:
        """What nobody took, or not in time, is under way no longer once it is over."""
        for number, lease in self.leases.items():
            overdue = ticks and lease.deadline <= now
            # One that some confirmed is let go when the time for the others is up, and no event tells of it.
            held = [offset for offset in self.held(number) if not overdue or self.entries[offset].state == "F"]
            if lease.awaited and (overdue or not lease.taken) and not held:
                lease.awaited.clear()

    @staticmethod
    def _flies(entry: Entry, number: int) -> bool:
        return entry.lease == number and entry.state in "FS"

    def leave_line(self, offset: int) -> None:
        self.later.discard(offset)
        for lane in self.lanes:
            if offset in lane:
                lane.remove(offset)

    def release_due(self, time: int) -> None:
        """Scheduled messages whose time has come take their place in line."""
        due = [at for at in self.later if self.entries[at].due <= time]
        for offset in sorted(due, key=lambda at: (self.entries[at].due, at)):
            self.later.remove(offset)
            self.join_line(self.entries[offset], offset)

    def deadline(self, since: int, expires: int | None = None) -> int:
        own = since + self.options.message_timeout if self.options.message_timeout else NEVER
        return own if expires is None else min(own, expires)


class Model:
    """All queues, as the records tell them."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueModel] = {}
        self.messages: dict[int, Message] = {}
        """By offset, as they were published."""
        self.next_offset = 0
        self.next_position = 0
        self.history: dict[tuple[str, str], bytes] = {}
        self.made_ids: set[str] = set()
        """Ids that Remuda made up."""
        self.newest_pullers: set[str] = set()
        self.clearing_pulls: set[str] = set()
        """Queues in which a pull request that clears may still wait."""
        self.exchanges: dict[str, tuple[ExchangeKind, list[Binding]]] = {}
        self.turns: dict[str, int] = {}
        """Whose turn it is in routers, by the number of the binding."""
        self.shared_dues: dict[str, float] = {}
        """When the next start is due by each rate that queues share."""
        self.now = 0
        self.latest = 0
        """The latest time of all, before the clock was set back."""
        self._position = 0

    def copy(self) -> Model:
        twin = copy.copy(self)
        twin.messages = dict(self.messages)
        twin.history = dict(self.history)
        twin.exchanges = {name: (kind, list(bound)) for name, (kind, bound) in self.exchanges.items()}
        twin.turns = dict(self.turns)
        twin.made_ids = set(self.made_ids)
        twin.shared_dues = dict(self.shared_dues)
        twin.queues = {name: queue.copy() for name, queue in self.queues.items()}
        return twin

    def queue(self, name: str) -> QueueModel:
        require(name in self.queues, f"a record tells of queue {name!r}, which does not exist")
        return self.queues[name]

    def play(self, record: Record, step: Step) -> None:
        if isinstance(record, Appended):
            self._append(record, step)
        elif isinstance(record, Events):
            require(
                record.first == self.next_position,
                f"events begin at position {record.first}, not at {self.next_position}",
            )
            self.next_position += len(record.rows)
            for position, event in enumerate(record.rows, record.first):
                self._position = position
                self._event(event, record.time, step)
        elif isinstance(record, QueueChange):
            self._change(record, step)
        elif isinstance(record, ExchangeChange):
            self._exchange(record)

    def _exchange(self, change: ExchangeChange) -> None:
        if change.action == "created":
            assert change.kind is not None
            bindings = list(change.bindings)
            if change.kind in ROUTERS:
                bindings.sort(key=lambda one: -one.priority)
            self.exchanges[change.exchange] = (change.kind, bindings)
            self.turns.pop(change.exchange, None)
        elif change.action == "turned":
            self.turns[change.exchange] = change.turn
        elif change.action == "removed":
            del self.exchanges[change.exchange]
        else:
            bound = self.exchanges[change.exchange][1]
            for binding in change.bindings:
                if change.action == "bound" and binding not in bound:
                    bound.append(binding)
                elif change.action == "unbound" and binding in bound:
                    bound.remove(binding)

    def behind(self, exchange: str, keys: Sequence[str], headers: dict[str, Any]) -> set[str]:
        """Q18: the queues behind an exchange."""
        found: set[str] = set()
        seen, pending = {exchange}, [exchange]
        while pending:
            kind, bound = self.exchanges.get(pending.pop(), (ExchangeKind.FANOUT, []))
            for binding in bound:
                fits = {
                    ExchangeKind.DIRECT: binding.key in keys,
                    ExchangeKind.TOPIC: any(matches(binding.key, key) for key in keys),
                    ExchangeKind.HEADERS: all(headers.get(name) == wish for name, wish in binding.arguments.items()),
                }.get(kind, True)
                if fits and binding.queue is not None:
                    found.add(binding.queue)
                elif fits and binding.exchange is not None and binding.exchange not in seen:
                    seen.add(binding.exchange)
                    pending.append(binding.exchange)
        return found

    # Messages

    def _append(self, record: Appended, step: Step) -> None:
        require(record.first == self.next_offset, f"messages begin at {record.first}, not at {self.next_offset}")
        self.next_offset += len(record)
        for row, message in enumerate(record.messages):
            offset = record.first + row
            self.messages[offset] = message
            if message.id.isdecimal():
                require(message.id not in self.made_ids, f"M4: id {message.id} was given twice")
                self.made_ids.add(message.id)
            if message.object is not None and message.key is not None and cell(record.digest, row) is not None:
                self.history[message.object, message.key] = message.body
            for name in cell(record.queues, row):
                queue = self.queue(name)
                queue.release_due(record.created)
                entry = Entry(
                    "Q",
                    0 if queue.options.ordered else message.priority,
                    queue.deadline(record.created, message.expires),
                )
                require(offset not in queue.entries, f"{name}: offset {offset} entered twice")
                due = flow.settled(self, queue, message, record.created)
                queue.entries[offset] = entry
                queue.had_messages = True
                queue.counts["Q"] += 1
                step.added.add((name, flow.key_in(queue.options, message)))
                if due > record.created:
                    entry.due = due
                    queue.later.add(offset)
                else:
                    queue.join_line(entry, offset)
                if queue.options.unique_ids:
                    queue.ids[offset] = queue.names[offset] = message.id

    # Events

    def _event(self, event: Event, time: int, step: Step) -> None:
        queue = self.queue(event.queue)
        queue.release_due(time)
        for offset in range(event.first, event.first + event.count):
            require(offset < self.next_offset, f"{queue.name}: an event tells of {offset}, which was never published")
            self._move(queue, offset, event, time, step)

    def _move(self, queue: QueueModel, offset: int, event: Event, time: int, step: Step) -> None:
        entry = queue.entries.get(offset)
        source, target = entry.state if entry else queue.ended.get(offset, "L"), event.state.value
        where = f"{queue.name}: message {offset}"
        if target != "Q":
            step.deadlines.pop((queue.name, offset), None)  # it was here already when another copy moved here
        if source in ("S", "K", "X") and target == "Q" and came_from_another(event):
            # It expired or was given up elsewhere after its copy here was settled: a new copy begins its life.
            del queue.ended[offset]
            source = "L"
        again = source == target == "S"
        require(again or source + target in MOVES, f"M6: {where} went from {source} to {target} ({event.reason})")
        step.told[queue.name, offset] = step.told.get((queue.name, offset), "") + target
        if event.to is None:  # what moves on has not ended
            queue.counts[target] += 1
        if entry is None:
            entry = queue.entries[offset] = Entry("L", event.priority)
            queue.ended.pop(offset, None)
        if source == "F" and not step.replays:
            self._check_reason_to_land(queue, offset, entry, target, step)
            self._check_attempt(queue, offset, entry, event, step)
        if target == "F":
            entry.fetched_by = self._position
            self._fetch(queue, offset, entry, event, time, step)
        elif target == "Q":
            self._enqueue(queue, offset, entry, event, time, step)
        elif target == "R":
            step.fronts[queue.name, offset] = event.ahead
            entry.due, entry.ahead, entry.lease = event.due or time, event.ahead, -1
            entry.attempt, entry.redelivered = event.attempt, True
        elif target in PARKED:
            if source in "QR" and not step.replays:
                self._check_reason_to_end(queue, offset, entry, event, time, step)
            self._check_target(queue, event, step)
            if source in "QR" and event.to is not None and event.reason is None:
                step.carried[event.to, offset] = entry.attempt, entry.due if entry.due > time else 0
            queue.leave_line(offset)
            flow.went(self, queue, offset)
            if event.to is not None and event.reason != "expired":
                step.deadlines[event.to, offset] = entry.deadline
            entry.reason, entry.lease, entry.deadline, entry.attempt = event.reason, -1, NEVER, 0
            entry.redelivered = False
            queue.ids.pop(offset, None)
            if event.to is not None:
                del queue.entries[offset]
                queue.ended[offset] = target
                queue.names.pop(offset, None)
                step.moved[event.to, offset] = queue.name
        elif target in "KX":
            del queue.entries[offset]
            queue.ids.pop(offset, None)
            queue.ended[offset] = target
        entry.state = target

    def _fetch(self, queue: QueueModel, offset: int, entry: Entry, event: Event, time: int, step: Step) -> None:
        where = f"{queue.name}: message {offset}"
        require(entry.deadline > time, f"Q5: {where} sent at {time}, after its deadline {entry.deadline}")
        require(offset in queue.waiting, f"{where} was sent while it was delayed until {entry.due}, now {time}")
        line = next(lane for lane in queue.lanes if lane)
        if not step.replays:
            told = flow.objection(self, queue, offset, time)
            require(not told, f"{where} was sent, but {told}")
        if step.replays or queue.options.takes_turns:
            line = next(lane for lane in queue.lanes if offset in lane)
        elif event.consumer in self.newest_pullers:
            require(offset == line[-1], f"Q16: {where} was sent where {line[-1]} is the newest")
        else:
            require(offset == line[0], f"Q15: {where} was sent before {line[0]}, whose turn it was")
        require(
            queue.status in (Status.RUNNING, Status.ONLY_CONSUME), f"Q14: {where} was sent while {queue.status.value}"
        )
        require(event.attempt == entry.attempt + 1, f"{where}: attempt {event.attempt} after {entry.attempt}")
        flow.spend(self, queue, offset, time)
        line.remove(offset)
        flow.went(self, queue, offset)
        entry.attempt, entry.consumer = event.attempt, event.consumer or ""
        entry.due, entry.ahead = 0, False
        step.fetched[queue.name, offset] = (entry.consumer, entry.attempt, entry.redelivered)

    def _enqueue(self, queue: QueueModel, offset: int, entry: Entry, event: Event, time: int, step: Step) -> None:
        where = f"{queue.name}: message {offset}"
        queue.had_messages = True
        step.fronts[queue.name, offset] = event.ahead
        if entry.state in "FR":
            if entry.state == "R" and not step.replays:
                wanted = 0 if queue.name in step.reprocessed else entry.attempt
                require(event.attempt == wanted, f"{where}: put back with attempt {event.attempt}, not {wanted}")
            entry.redelivered = event.attempt >= 0
        else:
            step.entered[queue.name] += 1
            entry.priority = 0 if queue.options.ordered else entry.priority
            step.moved.pop((queue.name, offset), None)
            carried = step.carried.pop((queue.name, offset), (0, 0))
            came = max(event.attempt, 0), event.due or 0
            require(step.replays or came == carried, f"B22: {where} came with {came}, and left with {carried}")
            entry.redelivered = event.attempt > 0
            if entry.state in PARKED:
                asked = queue.name in step.reprocessed or step.replays or event.reason != "reprocessed"
                require(asked, f"{where} was reprocessed although nobody asked")
            entry.deadline = min(queue.deadline(time), step.deadlines.pop((queue.name, offset), NEVER))
            if entry.state == "L":
                self._check_limits(queue, offset, step)
            if offset in queue.names and queue.names[offset] not in queue.ids.values():
                queue.ids[offset] = queue.names[offset]
        if entry.state == "R":
            flow.went(self, queue, offset)
        queue.leave_line(offset)
        entry.attempt, entry.ahead, entry.lease = max(event.attempt, 0), event.ahead, -1
        entry.state = "Q"
        if event.due is not None and event.due > time:
            entry.due = event.due
            queue.later.add(offset)
        else:
            entry.due = 0
            queue.join_line(entry, offset)

    def _check_limits(self, queue: QueueModel, offset: int, step: Step) -> None:
        """Q7 and Q12 hold for messages from other queues too."""
        message, limit = self.messages.get(offset), queue.options.message_size_limit
        if message is None:
            return  # a power loss took it, and left what happened to it
        where = f"{queue.name}: message {offset}"
        if not step.replays:
            require(not limit or len(message.body) <= limit, f"Q7: {where} came from another queue and is too large")
        if queue.options.unique_ids:
            taken = any(at != offset and own == message.id for at, own in queue.ids.items())
            require(step.replays or not taken, f"Q12: {where} came from another queue, and its id is taken")
            queue.names[offset] = message.id

    def _check_reason_to_land(self, queue: QueueModel, offset: int, entry: Entry, target: str, step: Step) -> None:
        """A message in flight changes only because of an answer, a missed deadline, or the end of its consumer."""
        handed = (queue.name, entry.lease) in step.handed
        if target == "K":
            lease = queue.leases.get(entry.lease)
            allowed = queue.options.acknowledge is Acknowledge.NONE if lease is None else lease.kicks and handed
        elif target == "S":
            allowed = (queue.name, offset) in step.answered
        else:
            lease = queue.leases.get(entry.lease)
            allowed = (
                (queue.name, offset) in step.answered
                or (step.ticks and (lease is None or lease.deadline <= self.now))
                or any((queue.name, name) in step.left for name in entry.consumer.split(", "))
                or step.resumes
                or queue.name in step.removed
                or self._may_end(queue)
                or (queue.name, offset) in step.unreadable
                or (handed and target == "E" and entry.deadline <= self.now)
            )
        require(allowed, f"{queue.name}: message {offset} went from F to {target} for no reason")

    def _check_attempt(self, queue: QueueModel, offset: int, entry: Entry, event: Event, step: Step) -> None:
        """B12: which attempts count, and that what nobody saw is as new as it was."""
        if event.state.value not in "RQ":
            return
        lease = queue.leases.get(entry.lease)
        wanted = entry.attempt
        if (queue.name, offset) in step.answered:
            counts = event.state.value == "R" if step.counted is None else step.counted
            wanted -= not counts
        elif (begun := step.begun(entry.fetched_by)) is not None:
            wanted -= offset not in begun
        elif lease is not None and lease.unseen:
            wanted = wanted - 1 if entry.redelivered else NEVER_DELIVERED
        require(
            event.attempt == wanted,
            f"B12: {queue.name}: message {offset} went back with attempt {event.attempt}, not {wanted}",
        )

    def _check_target(self, queue: QueueModel, event: Event, step: Step) -> None:
        """What ends goes on where the queue says, unless that queue does not take it."""
        if step.replays:
            return
        options, reason = queue.options, event.reason or ""
        wishes = {None, options.dead_letter_queue}
        if reason == "expired":
            wishes = {options.expired_queue or options.dead_letter_queue, None}
        if reason in ("cleared", "queue removed", "unreadable in the log") or reason.startswith("lost at restart"):
            wishes = {None}
        if reason == "given up" or (queue.name in step.moving and event.to is not None):
            return
        require(event.to in wishes, f"{queue.name}: {event.first} ended ({reason}) and went on to {event.to}")

    def _check_reason_to_end(
        self, queue: QueueModel, offset: int, entry: Entry, event: Event, time: int, step: Step
    ) -> None:
        """A waiting message ends only by its deadline, by eviction, or by someone's command."""
        where = f"{queue.name}: message {offset}"
        asked_to_move = queue.name in step.moving and (step.only is None or offset in step.only)
        if asked_to_move and event.to is not None:
            return
        match event.reason:
            case "expired":
                require(entry.deadline <= time, f"Q5: {where} expired at {time}, before its deadline {entry.deadline}")
            case "evicted":
                limit = queue.options.message_limit
                evicts = queue.options.limit_exceeded is LimitExceeded.DELETE_OLDEST
                require(
                    bool(limit) and evicts and queue.size > limit,
                    f"Q6: {where} was evicted from {queue.size} messages, the limit is {limit}",
                )
                for lane in queue.lanes:
                    if offset in lane and not queue.options.takes_turns:
                        require(offset == lane[0], f"Q6: {where} was evicted although {lane[0]} is older")
            case "replaced":
                newer = (queue.name, flow.key_of(self, queue, offset)) in step.added
                require(flow.replaces(queue.options) and newer, f"F4: {where} was replaced by nothing")
            case "cleared":
                asked = queue.name in step.cleared and (step.only is None or offset in step.only)
                asked = asked or queue.name in self.clearing_pulls
                require(asked, f"{where} was cleared although nobody asked")
            case "queue removed":
                require(
                    queue.name in step.removed or self._may_end(queue), f"{where} ended with its queue for no reason"
                )
            case "lost at restart: a memory queue":
                require(step.resumes and not queue.is_persistent, f"{where} was lost at restart: it was persistent")
            case "unreadable in the log":
                require((queue.name, offset) in step.unreadable, f"{where} ended as unreadable for no reason")
            case other:
                raise Violation(f"{where} ended while it waited: {other}")

    def _may_end(self, queue: QueueModel) -> bool:
        """Whether Q10 lets the queue go. Only the loss of all consumers takes a queue that still holds messages."""
        return queue.options.auto_destroy is AutoDestroy.NO_CONSUMERS and not queue.consumers

    # Queues

    def _change(self, change: QueueChange, step: Step) -> None:
        rates = {limit: flow.shared_rate(self, limit) for limit in self.shared_dues}
        self._apply(change, step)
        for limit, due in self.shared_dues.items():
            if rates[limit] != (after := flow.shared_rate(self, limit)):
                self.shared_dues[limit] = flow.carried(rates[limit], after, due, change.time)

    def _apply(self, change: QueueChange, step: Step) -> None:
        name = change.queue
        if change.action == "created":
            require(name not in self.queues, f"queue {name!r} was created twice")
            assert change.options is not None
            self.queues[name] = QueueModel(name, change.options, change.status or Status.RUNNING)
            return
        queue = self.queue(name)
        if change.action == "configured":
            assert change.options is not None
            flow.regroup(queue, change.options)
            if change.options.unique_ids and not queue.options.unique_ids:
                self._learn_ids(queue)
            queue.spent.configured(queue.options, change.options, change.time)
            queue.options = change.options
            self._forget_limits()
        elif change.action == KEY_PAUSED:
            queue.spent.pauses[change.named[0]] = change.first
        elif change.action == "status":
            assert change.status is not None
            queue.status = change.status
        elif change.action == "forgotten":
            for offset in range(change.first, change.first + change.count):
                require(
                    offset in queue.entries and queue.entries[offset].state in PARKED,
                    f"{name}: message {offset} was forgotten although it is not parked",
                )
                queue.ended[offset] = queue.entries.pop(offset).state
        elif change.action == "removed":
            live = [at for at, one in queue.entries.items() if one.state in LIVE]
            require(not live, f"queue {name!r} was removed and {live} are nowhere")
            over = step.replays or name in step.removed or self._is_over(queue, step)
            require(over, f"Q10: queue {name!r} was removed for no reason")
            del self.queues[name]
            self._forget_limits()
            for kind, bound in self.exchanges.values():
                if kind not in ROUTERS:
                    bound[:] = [binding for binding in bound if binding.queue != name]

    def _learn_ids(self, queue: QueueModel) -> None:
        """Q12 from now on: of messages that are here with the same id, the oldest live one has it."""
        for offset in sorted(queue.entries):
            message, entry = self.messages.get(offset), queue.entries[offset]
            if message is None or offset in queue.names:
                continue
            queue.names[offset] = message.id
            held = any(own == message.id and queue.entries[at].state != "S" for at, own in queue.ids.items())
            if entry.state not in PARKED and not held:
                queue.ids[offset] = message.id

    def _forget_limits(self) -> None:
        """A limit that no queue names any more is forgotten."""
        for limit in [one for one in self.shared_dues if not any(flow.members(self, one))]:
            del self.shared_dues[limit]

    def _is_over(self, queue: QueueModel, step: Step) -> bool:
        match queue.options.auto_destroy:
            case AutoDestroy.NO_MESSAGES:
                return queue.had_messages and not queue.parked()
            case AutoDestroy.EMPTY:
                return not queue.consumers and not queue.parked()
            case AutoDestroy.NO_CONSUMERS:
                return not queue.consumers and not step.resumes
            case _:
                return False


class Tally:
    """A queue's room as a batch fills it."""

    def __init__(self, model: Model, queue: QueueModel) -> None:
        self.queue = queue
        self.size = queue.size
        self.fixed = len(queue.flying())
        self.ids = set(queue.ids.values())
        self.merging = flow.Merging(model, queue)
        self.unsure = False
        """Whether it is not known of an earlier message whether it was taken, and so has its id here."""

    def objection(self, message: Message, now: int) -> str | None:
        options = self.queue.options
        word = self.merging.word(message, now)
        if self.queue.status not in (Status.RUNNING, Status.ONLY_PUBLISH):
            return "QueueNotAccepting"
        if options.message_size_limit and len(message.body) > options.message_size_limit:
            return "MessageTooLarge"
        if options.unique_ids and message.id in self.ids:
            return "Duplicate"
        if word and options.singleton is Singleton.REFUSE:
            return "Duplicate"
        if options.message_limit and self.size >= options.message_limit and not word:
            evicts = options.limit_exceeded is LimitExceeded.DELETE_OLDEST
            if not evicts or self.fixed >= options.message_limit:
                return "QueueFull"
        return None

    def take(self, message: Message, now: int) -> str | None:
        """What becomes of a message that is not refused."""
        word = self.merging.word(message, now)
        self.unsure = self.unsure or (word is None and self.queue.options.unique_ids)
        if word != "skipped":
            self.size += not word
            self.ids.add(message.id)
            self.merging.seen |= {key} if (key := flow.key_in(self.queue.options, message)) is not None else set()
        return word
