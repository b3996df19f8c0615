"""Turns a delivery into handler calls. In any process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from remuda.bus.broker_api import BaseDelivery, Outcome
from remuda.bus.handlers.call import HandlerCall, is_plain
from remuda.bus.handlers.context import Context, StopToken
from remuda.bus.handlers.environment import CallEnvironment
from remuda.bus.handlers.handler import Handler
from remuda.bus.handlers.result import CallResult
from remuda.bus.publishing import bodies
from remuda.bus.settings.settings import QueueSettings
from remuda.model.message import Message
from remuda.model.queues.flow_info import flow_key_of, key_header
from remuda.model.queues.options import KEY

_Row = tuple[int, Message, Context]


class Dispatcher:
    """The handlers of one queue; chooses the one for each message."""

    def __init__(
        self, queue: str, handlers: Sequence[Handler], settings: QueueSettings, environment: CallEnvironment
    ) -> None:
        self.queue = queue
        self.handlers = list(handlers)
        self.settings = settings
        self.environment = environment
        self.stop = StopToken()
        self.takes_lists = any(handler.signature.batch for handler in handlers)
        self.gate: Callable[[Message], CallResult | None] | None = None
        """Called before each call, in the process that owns the broker; if it returns a result, no call is made."""
        self.comes_anew: Callable[[int], bool] | None = None
        """Whether the message at an offset was moved here and is here for the first time; asked there too."""
        self._turn = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "gate": None, "comes_anew": None}

    def attempts(self, delivery: BaseDelivery[Any]) -> list[int]:
        """The attempts of the messages. One that was moved here after more attempts than this queue makes is tried
        once, as if for the last time."""
        attempts, most = delivery.attempts, self.settings.retry.max_retries + 1
        if self.comes_anew is None or max(attempts) <= most:
            return attempts
        anew = self.comes_anew
        return [
            most if attempt > most and anew(offset) else attempt
            for attempt, offset in zip(attempts, delivery.offsets, strict=True)
        ]

    def plain_handler(self) -> Handler | None:
        """The queue's only handler, if there is no gate and its calls are plain."""
        only = self.handlers[0]
        plain = len(self.handlers) == 1 and self.gate is None and is_plain(only, self.environment)
        return only if plain else None

    def calls(self, delivery: BaseDelivery[Any]) -> Iterable[tuple[list[int], HandlerCall | CallResult]]:
        """Each call with its rows; a result in its place where no call is made."""
        together: list[_Row] = []
        most = self.settings.retry.max_retries + 1
        only = self.handlers[0] if len(self.handlers) == 1 and not self.takes_lists else None
        queue, stop, environment = self.queue, self.stop, self.environment
        plain = only is not None and is_plain(only, environment)
        again = delivery.redelivered if self.takes_lists else ()
        for row, (attempt, message) in enumerate(zip(self.attempts(delivery), delivery, strict=True)):
            if attempt > most:
                yield [row], CallResult(Outcome.NACK, "the worker was lost during the last attempt")
            elif self.gate is not None and (decided := self.gate(message)) is not None:
                yield [row], decided
            elif only is not None:
                context = Context(message, queue, only.id, attempt, stop)
                if not plain:
                    context._row, context._delivery = row, delivery
                yield [row], HandlerCall(only, (context,), environment, plain)
            elif self.takes_lists and not again[row]:  # one that was here before is handled alone
                context = Context(message, queue, self.handlers[0].id, 1, stop)
                context._row, context._delivery = row, delivery
                together.append((row, message, context))
            else:
                context = Context(message, queue, "", attempt, stop)
                context._row, context._delivery = row, delivery
                yield [row], self._call_one(context)
        for group in self._grouped(together):
            yield from self._calls_many(group)

    def _grouped(self, together: list[_Row]) -> list[list[_Row]]:
        """The messages of each call: all of them, or those of one key."""
        if not self.settings.batch_by_key:
            return [together] if together else []
        header = key_header(dict(self.settings.rules).get("flow_key", KEY))
        groups: dict[str | None, list[_Row]] = {}
        for one in together:
            groups.setdefault(flow_key_of(header, one[1].key, one[1].headers), []).append(one)
        return list(groups.values())

    def _calls_many(self, together: list[_Row]) -> Iterator[tuple[list[int], HandlerCall | CallResult]]:
        """One call for many messages. A message that cannot be decoded gets a call of its own, which then fails."""
        handler, environment = self.handlers[0], self.environment
        wanted = handler.signature.body_type
        rows: list[int] = []
        contexts: list[Context] = []
        decoded: list[Any] = []
        for row, message, context in together:
            try:
                decoded.append(bodies.decode(message.body, message.mime_type, wanted))
            except Exception:
                yield [row], HandlerCall(handler, [context], environment)
                continue
            rows.append(row)
            contexts.append(context)
        if rows:
            yield rows, HandlerCall(handler, contexts, environment, False, decoded)

    def _call_one(self, context: Context) -> HandlerCall | CallResult:
        handler = self._choose(context.message)
        if handler is None:
            return CallResult(Outcome.DEAD, f"no handler of {self.queue} takes {context.message.name}")
        context.handler = handler.id
        return HandlerCall(handler, (context,), self.environment, is_plain(handler, self.environment))

    def _choose(self, message: Message) -> Handler | None:
        if len(self.handlers) == 1:
            return self.handlers[0]
        fitting = self._fitting(message)
        self._turn += 1
        return fitting[self._turn % len(fitting)] if fitting else None

    def _fitting(self, message: Message) -> list[Handler]:
        topics = message.topics or (message.name,)
        return [handler for handler in self.handlers if any(map(handler.takes, topics))]

    def names(self, message: Message) -> str:
        """The handler that a message gets; of several that take turns, all."""
        chosen = self.handlers if len(self.handlers) == 1 else self._fitting(message)
        return " or ".join(handler.id for handler in chosen)
