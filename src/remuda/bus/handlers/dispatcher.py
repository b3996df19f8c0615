"""Turns a delivery into handler calls. In any process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from remuda.bus.broker_api import BaseDelivery, Outcome
from remuda.bus.handlers.call import HandlerCall, is_plain
from remuda.bus.handlers.context import Context, StopToken
from remuda.bus.handlers.environment import CallEnvironment
from remuda.bus.handlers.handler import Handler
from remuda.bus.handlers.result import DONE, CallResult
from remuda.bus.publishing import bodies
from remuda.bus.settings.settings import QueueSettings
from remuda.model.message import Message


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
        self.gate: Callable[[Message], bool] | None = None
        """Called before each call, in the process that owns the broker; a message for which it returns False counts as
        done."""
        self._turn = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "gate": None}

    def plain_handler(self) -> Handler | None:
        """The queue's only handler, if there is no gate and its calls are plain."""
        only = self.handlers[0]
        plain = len(self.handlers) == 1 and self.gate is None and is_plain(only, self.environment)
        return only if plain else None

    def calls(self, delivery: BaseDelivery[Any]) -> Iterable[tuple[list[int], HandlerCall | CallResult]]:
        """Each call with its rows; a result in its place where no call is made."""
        together: list[tuple[int, Message, Context]] = []
        most = self.settings.retry.max_retries + 1
        only = self.handlers[0] if len(self.handlers) == 1 and not self.takes_lists else None
        queue, stop, environment = self.queue, self.stop, self.environment
        plain = only is not None and is_plain(only, environment)
        for row, (attempt, message) in enumerate(zip(delivery.attempts, delivery, strict=True)):
            if attempt > most:
                yield [row], CallResult(Outcome.NACK, "the worker was lost during the last attempt")
            elif self.gate is not None and not self.gate(message):
                yield [row], DONE
            elif only is not None:
                context = Context(message, queue, only.id, attempt, stop)
                yield [row], HandlerCall(only, (context,), environment, plain)
            elif self.takes_lists and attempt == 1:  # one that failed before is handled alone
                together.append((row, message, Context(message, queue, self.handlers[0].id, 1, stop)))
            else:
                yield [row], self._call_one(Context(message, queue, "", attempt, stop))
        if together:
            yield from self._calls_many(together)

    def _calls_many(
        self, together: list[tuple[int, Message, Context]]
    ) -> Iterator[tuple[list[int], HandlerCall | CallResult]]:
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
        topics = message.topics or (message.name,)
        fitting = [handler for handler in self.handlers if any(map(handler.takes, topics))]
        self._turn += 1
        return fitting[self._turn % len(fitting)] if fitting else None
