"""One call of a handler: decode, fill in values, run, and say how it ended. In any thread, loop or process."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from remuda.bus import bodies, outcome
from remuda.bus.context import Context
from remuda.bus.handler import Handler, arguments
from remuda.bus.middleware import Stack
from remuda.bus.outcome import DONE, Outcome, Reply

current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("remuda_context", default=None)
"""The message being handled here, so that what is published meanwhile is linked to it."""


class Call:
    """A handler with the messages for it: one, or several for a handler that takes a list."""

    def __init__(self, handler: Handler, contexts: Sequence[Context], stack: Stack, encoding: str = "json") -> None:
        self.handler = handler
        self._contexts = contexts
        self._stack = stack
        self._encoding = encoding

    def run(self) -> Outcome:
        """Call a plain function."""
        with self._around() as frame:
            frame.result = self.handler.function(**self._arguments())
        return frame.outcome

    async def run_async(self) -> Outcome:
        """Call a coroutine function, or a plain one, on this loop."""
        with self._around() as frame:
            result = self.handler.function(**self._arguments())
            frame.result = await result if self.handler.is_async else result
        return frame.outcome

    def value(self) -> Any:
        """Call now and give the result, or raise the error, as `send` does."""
        frame = _Frame()
        with self._middleware(frame):
            frame.result = self.handler.function(**self._arguments())
        return frame.result

    async def value_async(self) -> Any:
        frame = _Frame()
        with self._middleware(frame):
            result = self.handler.function(**self._arguments())
            frame.result = await result if self.handler.is_async else result
        return frame.result

    def _arguments(self) -> dict[str, Any]:
        plan = self.handler.plan
        decoded = [
            bodies.decode(context.message.body, context.message.mime_type, plan.body_type) for context in self._contexts
        ]
        return arguments(plan, decoded if plan.batch else decoded[0], self._contexts[0])

    @contextmanager
    def _around(self) -> Iterator[_Frame]:
        """The call as an outcome: nothing that a handler raises gets past this."""
        frame = _Frame()
        try:
            with self._middleware(frame):
                yield frame
            frame.outcome = self._reply(frame.result)
        except BaseException as error:
            if _is_ours(error):
                raise
            frame.outcome = outcome.of_error(error)

    @contextmanager
    def _middleware(self, frame: _Frame) -> Iterator[None]:
        """Middleware around the call; one of its error hooks may put a result in place of the error."""
        context = self._contexts[0]
        token = current.set(context)
        try:
            self._stack.handling(context)
            yield
            frame.result = self._stack.handled(context, frame.result)
        except BaseException as error:
            if _is_ours(error):
                raise
            handled = self._stack.failed(context, error)
            if handled is None:
                raise
            frame.result = handled.result
        finally:
            current.reset(token)

    def _reply(self, result: Any) -> Outcome:
        context = self._contexts[0]
        topic = context.response.callback
        if topic is None:
            return DONE
        body, mime_type = bodies.encode(result, self._encoding)
        return Outcome(DONE.answer, reply=Reply(topic, body, mime_type, dict(context.response.headers)))


class _Frame:
    result: Any = None
    outcome: Outcome = DONE


def _is_ours(error: BaseException) -> bool:
    """Whether this is not the handler's doing: a person's interrupt in the main thread, or a coroutine being closed."""
    interrupted = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
    return interrupted or isinstance(error, GeneratorExit)
