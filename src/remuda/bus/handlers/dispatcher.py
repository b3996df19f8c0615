"""What the workers of a queue have to do: the calls that its messages ask for. In any process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from remuda.bus.broker_api import BaseDelivery, Outcome
from remuda.bus.handlers.call import Call
from remuda.bus.handlers.call_result import CallResult
from remuda.bus.handlers.context import Context
from remuda.bus.handlers.handler import Handler
from remuda.bus.handlers.middleware import MiddlewareStack
from remuda.bus.settings.settings import QueueSettings
from remuda.model.message import Message


class Dispatcher:
    """One queue's handlers and rules."""

    def __init__(
        self, queue: str, handlers: Sequence[Handler], settings: QueueSettings, stack: MiddlewareStack, encoding: str
    ) -> None:
        self.queue = queue
        self.handlers = list(handlers)
        self.settings = settings
        self.stack = stack
        self.encoding = encoding
        self.takes_lists = any(handler.plan.batch for handler in handlers)
        self._turn = 0

    def calls(self, delivery: BaseDelivery[Any]) -> Iterable[tuple[list[int], Call | CallResult]]:
        """Each call that the delivery asks for, with its rows; an result where no call is to be made."""
        together: list[int] = []
        for row, attempt in enumerate(delivery.attempts):
            if attempt > self.settings.retry.max_retries + 1:
                yield [row], CallResult(Outcome.NEGATIVE, "its last attempt was lost together with its worker")
            elif self.takes_lists and attempt == 1:
                together.append(row)
            else:
                yield [row], self._call_one(Context(delivery[row], self.queue, "", attempt))
        if together:
            yield from self._calls_many(delivery, together)

    def _calls_many(
        self, delivery: BaseDelivery[Any], rows: list[int]
    ) -> Iterator[tuple[list[int], Call | CallResult]]:
        """One call for many messages. Those that cannot be decoded, or have failed before, are not in it."""
        handler, fit = self.handlers[0], []
        contexts, decoded = [], []
        for row in rows:
            context = Context(delivery[row], self.queue, handler.id, 1)
            call = Call(handler, [context], self.stack, self.encoding)
            try:
                decoded += call.decode()
            except Exception:
                yield [row], call
                continue
            fit.append(row)
            contexts.append(context)
        if fit:
            yield fit, Call(handler, contexts, self.stack, self.encoding, decoded)

    def _call_one(self, context: Context) -> Call | CallResult:
        handler = self._choose(context.message)
        if handler is None:
            return CallResult(Outcome.DEAD, f"no handler of {self.queue} takes {context.message.name}")
        context.handler = handler.id
        return Call(handler, [context], self.stack, self.encoding)

    def _choose(self, message: Message) -> Handler | None:
        if len(self.handlers) == 1:
            return self.handlers[0]
        topics = message.topics or (message.name,)
        fitting = [handler for handler in self.handlers if any(map(handler.takes, topics))]
        self._turn += 1
        return fitting[self._turn % len(fitting)] if fitting else None
