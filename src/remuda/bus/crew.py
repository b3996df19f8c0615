"""What all crews share: choosing the handler, keeping pace, and settling what was handled."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from remuda.broker.delivery import Answers, Delivery
from remuda.broker.port import Broker
from remuda.bus.context import Context
from remuda.bus.handler import Handler
from remuda.bus.invoke import Call
from remuda.bus.judge import Judgement, judge
from remuda.bus.middleware import Stack
from remuda.bus.outcome import Outcome, Reply
from remuda.bus.settings import QueueSettings
from remuda.core.effects import Answer
from remuda.core.settling import Verdict
from remuda.model.message import Message
from remuda.model.topics import matches

_log = logging.getLogger("remuda.bus")

POLL: Final = "200ms"
"""How long a worker asks for messages before it looks whether to stop."""
_QUICK: Final = 0.005
_SLOW: Final = 0.05
_MOST: Final = 256


class Crew(Protocol):
    """Everyone who works on one queue."""

    def start(self) -> None: ...
    def stop(self) -> None:
        """Take in nothing more; give back what has not begun."""
        ...

    def join(self, timeout: float) -> bool:
        """Wait for what has begun; False if it did not end in time."""
        ...


class Work:
    """One queue's handlers and rules, with the means to carry out what they decide."""

    def __init__(
        self,
        queue: str,
        handlers: Sequence[Handler],
        settings: QueueSettings,
        broker: Broker,
        stack: Stack,
        encoding: str,
        send_reply: Callable[[Message, Reply], None],
        on_threshold: Callable[[str, str, str], None] | None,
    ) -> None:
        self.queue = queue
        self.handlers = handlers
        self.settings = settings
        self.broker = broker
        self.stack = stack
        self._encoding = encoding
        self._send_reply = send_reply
        self._on_threshold = on_threshold
        self._turns = itertools.count()

    @property
    def takes_lists(self) -> bool:
        return any(handler.plan.batch for handler in self.handlers)

    def calls(self, delivery: Answers[Any]) -> Iterable[tuple[list[int], Call | Outcome]]:
        """Each call that the delivery asks for, with its rows; an outcome where no handler fits."""
        attempts = delivery.attempts
        if self.takes_lists:
            rows = list(range(len(delivery)))
            yield rows, self._call(self.handlers[0], [self._context(delivery, row, attempts[row]) for row in rows])
            return
        for row, attempt in enumerate(attempts):
            context = self._context(delivery, row, attempt)
            handler = self._choose(context.message)
            if handler is None:
                yield [row], Outcome(Answer.DEAD, f"no handler of {self.queue} takes {context.message.name}")
            else:
                context.handler = handler.id
                yield [row], self._call(handler, [context])

    def conclude(self, delivery: Answers[Any], ended: Sequence[tuple[list[int], Outcome]]) -> list[Any]:
        """Send replies and settle rows, those with one fate together. Gives what each answer gave."""
        fates: dict[Judgement, list[int]] = {}
        attempts = delivery.attempts
        for rows, outcome in ended:
            for row in rows:
                if outcome.reply is not None:
                    self._send_reply(delivery[row], outcome.reply)
                if outcome.answer is Answer.ACKNOWLEDGE:
                    fate = _success(delivery.consumer)
                else:
                    fate = judge(
                        outcome, self.settings, self.queue, delivery.messages.id(row), attempts[row],
                        delivery.consumer, self._on_threshold,
                    )  # fmt: skip
                fates.setdefault(fate, []).append(row)
        whole = len(delivery)
        return [
            delivery.answer(fate.verdict, None if len(rows) == whole else rows, fate.to) for fate, rows in fates.items()
        ]

    def _choose(self, message: Message) -> Handler | None:
        if len(self.handlers) == 1:
            return self.handlers[0]
        topics = message.topics or (message.name,)
        fitting = [
            handler
            for handler in self.handlers
            if any(matches(pattern, topic) for pattern in handler.topics for topic in topics)
        ]
        return fitting[next(self._turns) % len(fitting)] if fitting else None

    def _context(self, delivery: Answers[Any], row: int, attempt: int) -> Context:
        return Context(delivery[row], self.queue, self.handlers[0].id, attempt)

    def _call(self, handler: Handler, contexts: Sequence[Context]) -> Call:
        return Call(handler, contexts, self.stack, self._encoding)


class Pace:
    """How many messages to take at once: more while they are quick, one while they are slow or a crash lies behind."""

    def __init__(self, work: Work) -> None:
        self._fixed = work.settings.batch if work.takes_lists else None
        self.count = self._fixed or 1
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def end(self, *, failed: bool) -> None:
        if self._fixed is not None:
            return
        took = time.monotonic() - self._began
        if failed or took > _SLOW:
            self.count = max(1, self.count // 4)
        elif took < _QUICK:
            self.count = min(self.count * 2, _MOST)


def release(delivery: Delivery, rows: Sequence[int]) -> None:
    """Give back messages that were not begun."""
    if rows:
        delivery.release(rows)


def _success(consumer: str) -> Judgement:
    return Judgement(Verdict(Answer.ACKNOWLEDGE, consumer=consumer))
