"""What RabbitMQ cannot be asked for: the options and status of each queue, routers with their bindings, and which runs
of schedules began.

Every change is a value, and all processes apply the same changes in the same order: if two create a queue at once, the
options of the first apply, and both learn so.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import msgspec

from remuda.core.routing import Exchange, Routing
from remuda.model.queues.options import QueueOptions, Status
from remuda.model.queues.routing import Binding, ExchangeKind

CREATED: Final = "created"
CONFIGURED: Final = "configured"
INITIALIZED: Final = "initialized"
STATUS: Final = "status"
REMOVED: Final = "removed"
PARKING: Final = "parking"
DEFINED: Final = "defined"
"""A queue as it is, in place of all changes that led to it."""
ROUTER: Final = "router"
"""A router with its bindings, which replaces one of the same name."""
BOUND: Final = "bound"
UNBOUND: Final = "unbound"
ROUTER_REMOVED: Final = "router removed"
PLANNED: Final = "planned"
BEGAN: Final = "began"
_RUNS_KEPT: Final = 32
"""How many of its newest runs are kept for each schedule."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change, as it is written."""

    action: str
    name: str
    """The name of a queue, a router or a schedule."""
    token: str
    time: int
    options: QueueOptions | None = None
    status: Status | None = None
    parks: bool = False
    due: int = 0
    """When a schedule's run is due."""
    copy: str = ""
    """The copy of a run's message."""
    who: str | None = None
    kind: ExchangeKind | None = None
    bindings: tuple[Binding, ...] = ()


class QueueDefinition(msgspec.Struct, frozen=True):
    """A queue as all processes know it."""

    options: QueueOptions
    status: Status = Status.RUNNING
    parks: bool = False
    """Whether its dead-letter queue exists."""


class Catalog:
    """The result of all changes so far."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueDefinition] = {}
        self.routing = Routing()
        """The routers. Each process keeps its own round-robin turn."""
        self.planned: dict[str, list[int]] = {}
        """By schedule, when its newest planned runs are due."""
        self.began: dict[str, dict[int, str]] = {}
        """By schedule, the newest runs that began: when each was due, and the copy of its message that may run."""

    def __len__(self) -> int:
        runs = (*self.planned.values(), *self.began.values())
        return len(self.queues) + len(self.routing.exchanges) + sum(map(len, runs))

    def play(self, change: Change) -> bool:
        """Apply a change. Returns whether it holds: it changed something or, for a run, repeats what already held."""
        if change.action == PLANNED:
            return self._plan(change.name, change.due)
        if change.action == BEGAN:
            return self._begin(change.name, change.due, change.copy)
        if change.action in (ROUTER, BOUND, UNBOUND, ROUTER_REMOVED):
            return self._route(change)
        definition = self._changed(change, self.queues.get(change.name))
        if definition is None:
            if change.action != REMOVED:
                return False
            self.planned.pop(change.name, None)  # a schedule's queue has its name, and takes its runs with it
            self.routing.forget_queue(change.name)
            return self.queues.pop(change.name, None) is not None
        if definition == self.queues.get(change.name):
            return change.action == CONFIGURED
        self.queues[change.name] = definition
        return True

    def changes(self, now: int) -> list[Change]:
        """The fewest changes with the same result."""
        found = [
            change(DEFINED, name, now, options=one.options, status=one.status, parks=one.parks)
            for name, one in self.queues.items()
        ]
        found += [
            change(ROUTER, name, now, kind=one.kind, bindings=one.bindings)
            for name, one in self.routing.exchanges.items()
        ]
        found += [change(PLANNED, name, now, due=due) for name, dues in self.planned.items() for due in dues]
        found += [
            change(BEGAN, name, now, due=due, copy=copy)
            for name, runs in self.began.items()
            for due, copy in runs.items()
        ]
        return found

    def since(self, before: Catalog, now: int) -> list[Change]:
        """The changes of queues from an earlier catalog to this one."""
        found = [change(REMOVED, name, now) for name in before.queues if name not in self.queues]
        for name, one in self.queues.items():
            old = before.queues.get(name)
            if old is None:
                found.append(change(CREATED, name, now, options=one.options))
            elif old.status is not one.status:
                found.append(change(STATUS, name, now, status=one.status))
            elif old != one:
                found.append(change(CONFIGURED, name, now, options=one.options))
        return found

    def _changed(self, change: Change, known: QueueDefinition | None) -> QueueDefinition | None:
        """A queue after a change; None if the change does not apply, or removes it."""
        options, status = change.options, change.status
        match change.action:
            case "created" if known is None and options is not None:
                return QueueDefinition(options, status or Status.RUNNING)
            case "defined" if options is not None:
                return QueueDefinition(options, status or Status.RUNNING, change.parks)
            case "initialized" if known is not None and known.status is Status.NOT_INITIALIZED and options is not None:
                return msgspec.structs.replace(known, options=options, status=Status.RUNNING)
            case "configured" if known is not None and options is not None:
                return msgspec.structs.replace(known, options=options)
            case "status" if known is not None and status is not None:
                return msgspec.structs.replace(known, status=status)
            case "parking" if known is not None:
                return msgspec.structs.replace(known, parks=True)
        return None

    def _route(self, change: Change) -> bool:
        routers, name = self.routing.exchanges, change.name
        if change.action == ROUTER and change.kind is not None:
            routers[name] = Exchange(change.kind, change.bindings)
            return True
        if name not in routers:
            return False
        if change.action == ROUTER_REMOVED:
            del routers[name]
        for binding in change.bindings:
            if change.action == BOUND:
                routers[name].bind(binding)
            else:
                routers[name].unbind(binding)
        return True

    def _plan(self, schedule: str, due: int) -> bool:
        dues = self.planned.setdefault(schedule, [])
        if due in dues:
            return False
        dues.append(due)
        del dues[:-_RUNS_KEPT]
        return True

    def _begin(self, schedule: str, due: int, copy: str) -> bool:
        """Only one copy of a run's message may run, however often it is delivered."""
        runs = self.began.setdefault(schedule, {})
        if due in runs:
            return runs[due] == copy
        if len(runs) >= _RUNS_KEPT:
            oldest = min(runs)
            if due < oldest:
                return False
            del runs[oldest]
        runs[due] = copy
        return True


def change(action: str, name: str, now: int, **more: Any) -> Change:
    """A change with a token of its own."""
    return Change(action, name, uuid4().hex, now, **more)
