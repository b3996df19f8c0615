"""Which pairs of (option or verb) x (option or verb) x moment the seeds of the simulation met.

A command meets the options of each queue that it touches, and what was done to that queue shortly before; a publish
also brings what its messages ask for. The moment is that of the queue: whether something of it is still to become due,
or is due and not yet attended to; whether its broker was just opened again; whether the disk was just full.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from remuda.core.queues.ready import NEVER
from remuda.model.operations.commands import Command, Publish, Pull, Settle
from remuda.model.queues.options import QueueOptions
from tests.simulation.model import Step

if TYPE_CHECKING:
    from tests.simulation.runner import Simulation

Meeting = tuple[str, str, str]
MOMENTS: Final = ("before a time", "at a time", "at a takeover", "at a full disk")
VALUES: Final = {
    "type": ("push", "pull"),
    "acknowledge": ("none", "just-request"),
    "commit_when": ("sent", "acknowledged", "none"),
    "put_back": ("no", "priority"),
    "limit_exceeded": ("delete-oldest",),
}
"""Options with values that behave differently; of the others it counts whether they are set."""
SWITCHED: Final = (
    "put_back_delay", "delay_between_messages", "client_limit", "message_size_limit", "message_limit",
    "message_timeout", "expired_queue", "dead_letter_queue", "delivery_limit", "unique_ids", "persistence",
    "auto_destroy", "confirmations", "topics",
)  # fmt: skip
ASKED: Final = ("expires", "due", "priority", "own id", "key", "several topics", "batch")
VERBS: Final = (
    "publish", "publish to a queue", "publish through an exchange", "pull", "pull that waits", "pull of the newest",
    "pull that clears", "hand over", "acknowledge", "negative", "retry", "release", "dead", "invalid",
    "not-interested", "renew", "subscribe", "unsubscribe", "set credit", "declare", "configure", "set status",
    "reprocess", "forget", "clear",
    "move", "remove",
)  # fmt: skip
_NAMES: Final = {
    "HandOver": "hand over", "Renew": "renew", "Subscribe": "subscribe", "Unsubscribe": "unsubscribe",
    "SetCredit": "set credit", "DeclareQueue": "declare", "ConfigureQueue": "configure", "SetStatus": "set status",
    "Reprocess": "reprocess", "Forget": "forget", "Clear": "clear", "Move": "move", "RemoveQueue": "remove",
}  # fmt: skip
OPTIONS: Final = (*(f"{name}={value}" for name, values in VALUES.items() for value in values), *SWITCHED)
_DEFAULTS: Final = QueueOptions()
_LATELY: Final = 6
"""How many commands back another one on the same queue counts as met."""
_FULL: Final = 3
"""For how many steps the disk counts as just full."""
_SHOWN: Final = 100
_AFTERWARDS: Final = 6
"""For how many commands a queue's broker counts as just opened again."""


def possible() -> set[Meeting]:
    """All meetings that the contract allows."""
    pairs = set(combinations(sorted(OPTIONS), 2))
    pairs |= {(min(one, verb), max(one, verb)) for one in OPTIONS for verb in VERBS}
    pairs |= set(combinations(sorted(VERBS), 2))
    pairs |= {(min(one, other), max(one, other)) for one in ASKED for other in (*OPTIONS, *VERBS[:3])}
    pairs |= set(combinations(sorted(ASKED), 2))
    return {(*pair, moment) for pair in pairs if not _excluded(*pair) for moment in MOMENTS}


def _excluded(one: str, other: str) -> bool:
    pair = {one, other}
    return (
        one.split("=")[0] == other.split("=")[0]  # two values of one option
        or pair == {"confirmations", "type=pull"}  # only a push queue counts confirmations
        # Nothing of a queue that kicks is in anybody's hands, so nobody answers for it or asks for more time.
        or ("acknowledge=none" in pair and bool(pair & {"acknowledge", "negative", "retry", "release"}))
        or ("acknowledge=none" in pair and bool(pair & {"dead", "invalid", "not-interested"}))
    )


class Meetings:
    """What one seed met."""

    def __init__(self) -> None:
        self.met = Counter[Meeting]()
        self._verbs: dict[str, deque[str]] = {}
        self._engine: object = None
        self._first = 0
        self._options: dict[str, QueueOptions] = {}
        self._fresh = Counter[str]()
        self.full_at = -_FULL - 1
        """The step at which the disk was full last."""

    def moments(self, sim: Simulation) -> dict[str, list[str]]:
        """Of every queue, before a command."""
        if sim.engine is not self._engine:
            takes_over = self._engine is not None
            self._engine = sim.engine
            self._fresh = Counter(dict.fromkeys(sim.model.queues, _AFTERWARDS) if takes_over else {})
        self._first = sim.model.next_offset
        self._options = {name: queue.options for name, queue in sim.model.queues.items()}
        full = sim.step_number - self.full_at <= _FULL
        found: dict[str, list[str]] = {}
        for name, queue in sim.engine.core.queues.items():
            found[name] = ["at a full disk"] if full else []
            if queue.wake < NEVER:
                found[name].append("at a time" if queue.wake <= sim.clock else "before a time")
            if self._fresh[name] > 0:
                found[name].append("at a takeover")
        return found

    def note(self, step: Step, command: Command, moments: dict[str, list[str]], sim: Simulation) -> None:
        verb = _verb(command)
        if verb is None:
            return
        touched = {*step.entered, getattr(command, "queue", None)}
        new = range(self._first, sim.model.next_offset)
        touched |= {name for name, queue in sim.model.queues.items() if any(one in queue.entries for one in new)}
        asked = _asked(command) if isinstance(command, Publish) else set()
        for name in touched:
            queue = sim.model.queues.get(name or "")
            options = self._options.get(name or "") if queue is None else queue.options
            if name is None or options is None:
                continue
            self._fresh[name] -= 1
            before = self._verbs.setdefault(name, deque(maxlen=_LATELY))
            lately = set(before) - {verb}
            before.append(verb)
            if not moments.get(name):
                continue
            features = sorted(_set(options) | asked | {verb})
            pairs = list(combinations(features, 2))
            pairs += [(min(one, verb), max(one, verb)) for one in lately]
            self.met.update((*pair, moment) for pair in pairs for moment in moments[name])


def _verb(command: Command) -> str | None:
    match command:
        case Publish(exchange=str()):
            return "publish through an exchange"
        case Publish(queue=str()):
            return "publish to a queue"
        case Publish():
            return "publish"
        case Pull(newest=True):
            return "pull of the newest"
        case Pull(clear_after=after) if after != "none":
            return "pull that clears"
        case Pull(wait=wait):
            return "pull that waits" if wait else "pull"
        case Settle(settlement=settlement):
            return settlement.outcome.value
    return _NAMES.get(type(command).__name__)


def _set(options: QueueOptions) -> set[str]:
    """The options of a queue that are not the usual."""
    found = {name for name in SWITCHED if getattr(options, name) != getattr(_DEFAULTS, name)}
    for name, values in VALUES.items():
        value = getattr(options, name).value
        if value in values:
            found.add(f"{name}={value}")
    return found


def _asked(command: Publish) -> set[str]:
    """What messages ask for."""
    messages, found = command.messages, set[str]()
    fields: dict[str, Any] = {
        "expires": messages.expires, "due": messages.due, "key": messages.key, "priority": messages.priority,
        "own id": messages.ids, "several topics": messages.topics,
    }  # fmt: skip
    for name, column in fields.items():
        if any(column) if isinstance(column, list) else column:
            found.add(name)
    return found | ({"batch"} if len(messages) > 1 else set())


def report(met: Counter[Meeting]) -> str:
    """How many of the possible meetings there were, and which were not."""
    wanted = possible()
    missing = sorted(wanted - met.keys())
    by_moment = Counter(moment for _, _, moment in missing)
    lines = [f"{len(wanted) - len(missing)} of {len(wanted)} pairs of options and verbs at a moment were met"]
    if missing:
        lines.append("not met: " + ", ".join(f"{count} {moment}" for moment, count in by_moment.items()))
        lines += [f"  {one} x {other} {moment}" for one, other, moment in missing[:_SHOWN]]
    return "\n".join(lines)
