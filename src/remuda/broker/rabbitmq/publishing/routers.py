"""Routers (Q18): the bus chooses among the bindings that all processes know from the definitions, and publishes to
their queues by name. Each process keeps its own round-robin turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from remuda.broker.rabbitmq.publishing.publication import Publishing, Routes
from remuda.broker.rabbitmq.shared_state import queue_definitions as defined
from remuda.broker.rabbitmq.shared_state.definitions_journal import Definitions
from remuda.broker.rabbitmq.shared_state.message_ids import number_of
from remuda.broker.rabbitmq.shared_state.queue_declarations import Queues, check_name
from remuda.broker.rabbitmq.shared_state.queue_definitions import Change, change
from remuda.core.routing import Exchange
from remuda.model.errors import Conflict, NotFound, Refused, Unsupported
from remuda.model.message import CORRELATION
from remuda.model.messages import Messages, cell
from remuda.model.operations.commands import Bind, DeclareExchange, Publish, RemoveExchange, Unbind
from remuda.model.operations.results import Receipt
from remuda.model.queues.routing import ROUTERS, Binding, ExchangeKind

Refusals = dict[int, Refused]


class Routers:
    """Changes routers, and publishes through them. Waits for RabbitMQ."""

    def __init__(
        self, publishing: Publishing, queues: Queues, definitions: Definitions, clock: Callable[[], int]
    ) -> None:
        self._publishing = publishing
        self._queues = queues
        self._definitions = definitions
        self._clock = clock

    def all(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        routers = self._definitions.catalog.routing.exchanges
        return {name: (one.kind, one.bindings) for name, one in sorted(routers.items())}

    def carry_out(self, command: DeclareExchange | RemoveExchange | Bind | Unbind) -> None:
        """Create, change or remove a router, for all processes."""
        self._queues.check_open()
        if not self._definitions.propose(self._change(command)):
            raise _unknown(command.exchange)

    def route(self, command: Publish) -> Receipt:
        """Publish through a router."""
        self._queues.check_open()
        name, now = command.exchange or "", self._clock()
        router = self._definitions.catalog.routing.exchanges.get(name)
        if router is None:
            raise NotFound(f"{_unknown(name)}; nothing was stored")
        if not command.messages.bodies:
            return Receipt(0, [], {})
        messages = self._publishing.stamped(command.messages, now)
        if router.kind not in ROUTERS:
            return self._through(name, messages)
        if not router.bindings:
            raise Conflict(f"router {name!r} has no binding; nothing was stored")
        originals = _correlated(messages)
        if router.kind is ExchangeKind.DISTRIBUTE:
            refusals, partly = self._distribute(originals, router.bindings)
        else:
            refusals, partly = self._in_turn(originals, router), {}
        assert originals.ids is not None
        return Receipt(number_of(originals.id(0)), originals.ids, refusals, partly_refused=partly)

    # Choosing bindings

    def _change(self, command: DeclareExchange | RemoveExchange | Bind | Unbind) -> Change:
        name, now = command.exchange, self._clock()
        match command:
            case DeclareExchange():
                _check(command.bindings)
                return change(defined.ROUTER, name, now, kind=command.kind, bindings=command.bindings)
            case Bind():
                _check((command.binding,))
                return change(defined.BOUND, name, now, bindings=(command.binding,))
            case Unbind():
                return change(defined.UNBOUND, name, now, bindings=(command.binding,))
            case RemoveExchange():
                return change(defined.ROUTER_REMOVED, name, now)

    def _distribute(self, originals: Messages, bindings: Sequence[Binding]) -> tuple[Refusals, Refusals]:
        """Every binding gets a copy. Returns the refusals of rows that no binding took, and of those that only some
        refused."""
        refused: Refusals = {}
        routes: list[tuple[str, ...]] = [()] * len(originals)
        for queue in dict.fromkeys(one.queue for one in bindings if one.queue is not None):
            objections = self._objections(queue, originals)
            refused = {**objections, **refused}
            routes = [names if row in objections else (*names, queue) for row, names in enumerate(routes)]
        taken = [row for row, names in enumerate(routes) if names]
        accepted = set(taken)
        if taken:
            receipt = self._to_queues(originals.take(taken), [routes[row] for row in taken])
            accepted -= {taken[at] for at in receipt.refusals}
            by_row = {**receipt.refusals, **receipt.partly_refused}
            refused = {**{taken[at]: error for at, error in by_row.items()}, **refused}
        for binding in bindings:
            if binding.queue is None:
                copies = self._copy_to(binding, originals)
                accepted |= {row for row in range(len(originals)) if row not in copies}
                refused = {**copies, **refused}
        by_all = {row: error for row, error in refused.items() if row not in accepted}
        return by_all, {row: error for row, error in refused.items() if row in accepted}

    def _in_turn(self, originals: Messages, router: Exchange) -> Refusals:
        """Each message goes to one binding, or to the next if that refuses it. Messages for the same binding are
        published together."""
        bindings, count = router.bindings, len(originals)
        turns = [0] * count
        if router.kind is ExchangeKind.ROUND_ROBIN:
            turns = list(range(router.turn, router.turn + count))
            router.turn += count
        refusals: Refusals = {}
        left = list(range(count))
        for step in range(len(bindings)):
            again: Refusals = {}
            for at, binding in enumerate(bindings):
                rows = [row for row in left if (turns[row] + step) % len(bindings) == at]
                if rows:
                    refused = self._copy_to(binding, originals.take(rows))
                    again |= {rows[place]: error for place, error in refused.items()}
            refusals, left = again, sorted(again)
            if not left:
                break
        return refusals

    def _copy_to(self, binding: Binding, originals: Messages) -> Refusals:
        """Publish copies to one binding. Returns the rows it refused."""
        try:
            if binding.queue is not None:
                refused = self._objections(binding.queue, originals)
                rows = [row for row in range(len(originals)) if row not in refused]
                if rows:
                    receipt = self._to_queues(originals.take(rows), [(binding.queue,)] * len(rows))
                    refused |= {rows[at]: error for at, error in receipt.refusals.items()}
                return refused
            if binding.exchange is not None:
                fresh = msgspec.structs.replace(originals, ids=None)
                return self._through(binding.exchange, self._publishing.stamped(fresh, self._clock())).refusals
            named = msgspec.structs.replace(originals, name=binding.topic, topics=(), ids=None)
            command = Publish(named)
            self._queues.ensure_all(self._publishing.needed(command), None)
            self._publishing.prepare(command)
            return self._publishing.submit(command).result().refusals
        except NotFound as error:
            return {row: Refused(str(error)) for row in range(len(originals))}

    def _through(self, name: str, messages: Messages) -> Receipt:
        """Route by key or headers, as AMQP's exchanges do."""
        through = self._definitions.catalog.routing.through
        routes = [through(name, messages.topics_of(row), cell(messages.headers, row)) for row in range(len(messages))]
        for queue in dict.fromkeys(queue for names in routes for queue in names):
            self._queues.ensure(queue)
        return self._to_queues(messages, routes)

    def _objections(self, queue: str, messages: Messages) -> Refusals:
        """The rows that a queue refuses, as far as the bus knows."""
        try:
            self._queues.ensure(queue)
        except NotFound as error:
            return {row: Refused(str(error)) for row in range(len(messages))}
        found = {row: self._publishing.objection((queue,), len(body)) for row, body in enumerate(messages.bodies)}
        return {row: refused for row, refused in found.items() if refused is not None}

    def _to_queues(self, messages: Messages, routes: Routes) -> Receipt:
        command = Publish(messages)
        self._publishing.prepare(command, routes)
        return self._publishing.submit(command, routes=routes).result()


def _correlated(messages: Messages) -> Messages:
    headers: list[Mapping[str, str]] = []
    for row in range(len(messages)):
        own: Mapping[str, str] = cell(messages.headers, row)
        headers.append({**own, CORRELATION: messages.id(row)})
    return msgspec.structs.replace(messages, headers=headers)


def _check(bindings: Sequence[Binding]) -> None:
    for binding in bindings:
        if binding.queue is not None:
            check_name(binding.queue)
        if any(isinstance(value, bytes) for value in binding.arguments.values()):
            raise Unsupported(
                "on RabbitMQ the arguments of a binding are stored as JSON, which has no bytes; give a string. Nothing "
                "was changed",
                "routers",
            )


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no router {name!r}")
