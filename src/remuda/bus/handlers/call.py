"""One call of a handler: decode, fill in values, run, and say how it finished. In any thread, loop or process."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import sys
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

from remuda.bus.handlers import call_result
from remuda.bus.handlers.call_result import DONE, CallResult, Reply
from remuda.bus.handlers.context import Context
from remuda.bus.handlers.handler import Handler, arguments
from remuda.bus.handlers.middleware import Middleware, MiddlewareStack
from remuda.bus.publishing import bodies
from remuda.model.errors import RemudaError

T = TypeVar("T")

current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("remuda_context", default=None)
"""The message being handled here, so that what is published meanwhile is linked to it."""


class Call:
    """A handler with the messages for it: one, or several for a handler that takes a list.

    Of several, the first stands for all where only one can be shown: to middleware, and to a handler that asks for one.
    """

    def __init__(
        self,
        handler: Handler,
        contexts: Sequence[Context],
        stack: MiddlewareStack,
        encoding: str = "json",
        decoded: list[Any] | None = None,
    ) -> None:
        self.handler = handler
        self._contexts = contexts
        self._stack = stack
        self._encoding = encoding
        self._decoded = decoded

    def run(self) -> CallResult:
        """Call a plain function, or a coroutine function on a loop of its own. Nothing it raises gets past this."""
        try:
            return self._outcome(self.value())
        except BaseException as error:
            return _result_of(error)

    async def run_async(self) -> CallResult:
        """Call a coroutine function, or a plain one, on this loop."""
        try:
            return self._outcome(await self.value_async())
        except BaseException as error:
            return _result_of(error)

    def value(self) -> Any:
        """Call now and give the result, or raise the error, as `send` does."""
        frame = _MiddlewareScope(self._contexts[0], self._stack)
        try:
            frame.begin()
            result = self.handler.function(**self._arguments())
            frame.result = run_coroutine(result) if inspect.iscoroutine(result) else result
        except BaseException as error:
            frame.fail(error)
        return frame.end()

    async def value_async(self) -> Any:
        frame = _MiddlewareScope(self._contexts[0], self._stack)
        try:
            frame.begin()
            result = self.handler.function(**self._arguments())
            frame.result = await result if inspect.iscoroutine(result) else result
        except BaseException as error:
            frame.fail(error)
        return frame.end()

    def decode(self) -> list[Any]:
        """The bodies as the handler wants them; raises `Undecodable`."""
        plan = self.handler.plan
        if plan.body is None:
            return [None] * len(self._contexts)
        messages = [context.message for context in self._contexts]
        return [bodies.decode(message.body, message.mime_type, plan.body_type) for message in messages]

    def _arguments(self) -> dict[str, Any]:
        decoded = self.decode() if self._decoded is None else self._decoded
        return arguments(self.handler.plan, decoded if self.handler.plan.batch else decoded[0], self._contexts[0])

    def _outcome(self, result: Any) -> CallResult:
        for context in self._contexts:
            if context.wants_reply:
                break
        else:
            return DONE
        responses = [context.response for context in self._contexts]
        each = self.handler.plan.batch and isinstance(result, list) and len(result) == len(responses)
        replies: list[Reply | None] = []
        for row, response in enumerate(responses):
            if response.callback is None:
                replies.append(None)
                continue
            body, mime_type = bodies.encode(result[row] if each else result, self._encoding)
            replies.append(Reply(response.callback, body, mime_type, dict(response.headers)))
        return CallResult(DONE.outcome, replies=tuple(replies))


class _MiddlewareScope:
    """Middleware around one call; one of its error hooks may put a result in place of the error."""

    def __init__(self, context: Context, stack: MiddlewareStack) -> None:
        self.result: Any = None
        self._context = context
        self._stack = stack
        self._error: BaseException | None = None
        self._begun: list[Middleware] = []
        self._process = os.getpid()
        self._token = current.set(context)

    def begin(self) -> None:
        self._stack.handling(self._context, self._begun)

    def fail(self, error: BaseException) -> None:
        if _is_ours(error):
            current.reset(self._token)
            raise error
        self._error = error

    def end(self) -> Any:
        """The result that counts, or the error."""
        if os.getpid() != self._process:
            _end_fork(self._error)
        try:
            return self._stack.handled(self._context, self._begun, self.result, self._error)
        finally:
            current.reset(self._token)


def _result_of(error: BaseException) -> CallResult:
    """An error as an result, unless it is not the handler's."""
    if _is_ours(error):
        raise error
    return call_result.of_error(error)


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end in this thread."""
    if not loop_runs_here():
        return asyncio.run(coroutine)
    coroutine.close()
    raise RemudaError("a loop is running in this thread, and the handler is a coroutine; await send_async instead")


def loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_on_new_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own, whether or not one is running here."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(context.run, asyncio.run, coroutine).result()


def _is_ours(error: BaseException) -> bool:
    """Whether this is not the handler's doing: a person's interrupt in the main thread, or a coroutine being closed."""
    interrupted = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
    return interrupted or isinstance(error, GeneratorExit)


def _end_fork(error: BaseException | None) -> NoReturn:
    """The handler forked, and its copy comes back. It ends here: the original answers for the message."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
