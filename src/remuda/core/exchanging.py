"""Exchanges are declared, bound, unbound and removed (Q18)."""

from __future__ import annotations

from remuda.core.recorder import Recorder
from remuda.core.routing import Exchange, Routing
from remuda.model.errors import NotFound
from remuda.model.operations.commands import Bind, DeclareExchange, RemoveExchange, Unbind
from remuda.model.records import BOUND, CREATED, REMOVED, TURNED, UNBOUND, ExchangeChange


class Exchanging:
    def __init__(self, recorder: Recorder, routing: Routing) -> None:
        self._recorder = recorder
        self._routing = routing

    def declare(self, command: DeclareExchange) -> None:
        self._change(ExchangeChange(CREATED, command.exchange, self._recorder.now, command.kind, command.bindings))

    def remove(self, command: RemoveExchange) -> None:
        self._find(command.exchange)
        self._change(ExchangeChange(REMOVED, command.exchange, self._recorder.now))

    def bind(self, command: Bind) -> None:
        self._find(command.exchange)
        self._change(ExchangeChange(BOUND, command.exchange, self._recorder.now, bindings=(command.binding,)))

    def unbind(self, command: Unbind) -> None:
        self._find(command.exchange)
        self._change(ExchangeChange(UNBOUND, command.exchange, self._recorder.now, bindings=(command.binding,)))

    def play(self, change: ExchangeChange) -> None:
        exchanges = self._routing.exchanges
        if change.action == CREATED and change.kind is not None:
            exchanges[change.exchange] = Exchange(change.kind, change.bindings)
        elif change.action == TURNED and change.exchange in exchanges:
            exchanges[change.exchange].turn = change.turn
        elif change.action == REMOVED:
            exchanges.pop(change.exchange, None)
        elif change.exchange in exchanges:
            for binding in change.bindings:
                exchange = exchanges[change.exchange]
                if change.action == BOUND:
                    exchange.bind(binding)
                else:
                    exchange.unbind(binding)

    def _change(self, change: ExchangeChange) -> None:
        self._recorder.change(change)
        self.play(change)

    def _find(self, name: str) -> Exchange:
        try:
            return self._routing.exchanges[name]
        except KeyError:
            raise NotFound(f"there is no router {name!r}") from None
