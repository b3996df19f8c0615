"""One call of a handler: decode the body, fill in values, run, report the result. In any thread, loop or process."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import sys
import threading
from collections.abc import Generator, Sequence
from typing import Any, Final, NoReturn

import msgspec

from remuda.bus.handlers import result as results
from remuda.bus.handlers.context import Context
from remuda.bus.handlers.environment import CallEnvironment
from remuda.bus.handlers.handler import Handler
from remuda.bus.handlers.loops import drive, drive_async, loop_runs_here
from remuda.bus.handlers.middleware import Middleware
from remuda.bus.handlers.providers import end_all
from remuda.bus.handlers.result import DONE, CallResult
from remuda.bus.handlers.signature import BY_TYPE
from remuda.bus.publishing import bodies
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.message_checks import check_headers, check_target
from remuda.bus.publishing.result_messages import Reply, kept_result

current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("remuda_context", default=None)
"""The message being handled here; messages published meanwhile are linked to it."""

forks: Final = [0]
"""How many forks led to this process."""


def _count_fork() -> None:
    forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class HandlerCall(msgspec.Struct, eq=False):
    """A handler with the messages for it: one, or several for a handler that takes a list.

    With several, middleware and parameters such as `Context` see the first.
    """

    handler: Handler
    _contexts: Sequence[Context]
    _environment: CallEnvironment
    _plain: bool = False
    """Whether `is_plain` is known to hold; such a call takes a shortcut."""
    _decoded: list[Any] | None = None

    def run(self) -> CallResult:
        """Call a plain function, or a coroutine function on a loop. Its errors become results."""
        try:
            return self.result(self.value())
        except BaseException as error:
            return self.failure(error)

    async def run_async(self) -> CallResult:
        """Call a coroutine function, or a plain one, on this loop."""
        try:
            return self.result(await self.value_async())
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not _in_task():
                # Not raised by the handler: the coroutine is being discarded.
                raise
            return self.failure(error)

    def value(self) -> Any:
        """Call the handler and return its value or raise its error, as `send` needs it."""
        if not self._plain:
            return drive(self._steps(), self._environment.loop)
        context = self._contexts[0]
        token, before = current.set(context), forks[0]
        failure: BaseException | None = None
        result: Any = None
        try:
            result = self._call_plain(context)
            if result is not None and inspect.isawaitable(result):
                result = self._environment.loop.complete(result)
        except BaseException as error:
            failure = error
        finally:
            current.reset(token)
        if failure is None and forks[0] == before:
            return result
        return ended(result, failure, before)

    async def value_async(self) -> Any:
        if not self._plain:
            return await drive_async(self._steps())
        context = self._contexts[0]
        token, before = current.set(context), forks[0]
        failure: BaseException | None = None
        result: Any = None
        try:
            result = self._call_plain(context)
            if result is not None and inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            failure = error
        finally:
            _leave(token)
        return ended(result, failure, before)

    def decode(self) -> list[Any]:
        """The bodies as the handler wants them; raises `Undecodable`."""
        signature = self.handler.signature
        if signature.body is None:
            return [None] * len(self._contexts)
        messages = [context.message for context in self._contexts]
        return [bodies.decode(message.body, message.mime_type, signature.body_type) for message in messages]

    def _call_plain(self, context: Context) -> Any:
        signature, message = self.handler.signature, context.message
        wanted, body = signature.body_type, message.body
        value = body if wanted is bytes else bodies.decode(body, message.mime_type, wanted)
        return self.handler.function(**{signature.body or "": value})

    def _steps(self) -> Generator[Any, Any, Any]:
        """The call with middleware and providers; yields what may have to be awaited."""
        context, middleware = self._contexts[0], self._environment.middleware
        begun: list[Middleware] = []
        opened: list[Any] = []
        result: Any = None
        failure: BaseException | None = None
        token, before = current.set(context), forks[0]
        try:
            try:
                yield from middleware.handling(context, begun)
                given: dict[str, Any] = yield from self._arguments(opened)
                result = yield self.handler.function(**given)
            except GeneratorExit:
                # The generator may be discarded; then no hook can run.
                raise
            except BaseException as error:
                failure = error
            if failure is not None and (_is_ours(failure) or forks[0] != before):
                return ended(result, failure, before)
            if forks[0] != before:
                _end_fork(None)
            try:
                yield from end_all(opened, failure)
            except BaseException as error:
                failure = error
            return (yield from middleware.handled(context, begun, result, failure))
        finally:
            _leave(token)

    def _arguments(self, opened: list[Any]) -> Generator[Any, Any, dict[str, Any]]:
        signature, context = self.handler.signature, self._contexts[0]
        context.encoding = self._environment.encoding
        given: dict[str, Any] = {}
        if signature.body is not None:
            decoded = self.decode() if self._decoded is None else self._decoded
            given[signature.body] = decoded if signature.batch else decoded[0]
        for name, wanted in signature.by_type.items():
            make = BY_TYPE.get(wanted)
            if make is not None:
                given[name] = make(context)
            elif wanted in context.values:
                given[name] = context.values[wanted]
            elif wanted in self._environment.providers:
                given[name] = yield from self._environment.providers.begin(wanted, context, opened)
            else:
                raise LookupError(f"handler {context.handler} asks for a {wanted!r}, which no middleware provides")
        return given

    def result(self, value: Any) -> CallResult:
        """The result of a call that succeeded. Replies are encoded here, so that an error in them still fails it."""
        handler = self.handler
        if not handler.replies:
            return DONE
        first, *others = self._contexts
        if others and first.changes_reply:
            for context in others:
                context.response.follow(first.response)
        if not handler.options.keep_result:
            for context in self._contexts:
                if context.wants_result:
                    break
            else:
                return DONE
        try:
            return self._with_replies(value)
        except Exception as error:
            return results.unstorable_reply(error)

    def _with_replies(self, value: Any) -> CallResult:
        contexts, keep = self._contexts, self.handler.options.keep_result
        each = self.handler.signature.batch and isinstance(value, list) and len(value) == len(contexts)
        replies: list[Reply] = []
        rows: list[int] = []
        for row, context in enumerate(contexts):
            wanted = keep or context.keeps_result
            if not context.wants_reply and not wanted:
                continue
            body, mime_type = bodies.encode(value[row] if each else value, self._environment.encoding)
            callback = context.response.callback
            caller = context.message.headers.get(names.CALLBACK, "")
            if caller.startswith(names.AWAITED) and callback != caller:
                why = "no reply comes: the handler " + (
                    "removed it" if callback is None else f"sends it to {callback} instead"
                )
                told = {names.EXCEPTION: why, names.ERROR_TYPE: "NoReply", names.GROUP: context.queue}
                replies.append(Reply(caller, b"", "text/plain", told))
                rows.append(row)
            if callback is not None:
                check_target("callback", callback)
                if context.response.rewritten:
                    callback = self._environment.prefix + callback
                replies.append(Reply(callback, body, mime_type, dict(check_headers(context.response.headers))))
                rows.append(row)
            if wanted:
                replies.append(kept_result(context.queue, context.message.id, body, mime_type, context.result_headers))
                rows.append(row)
        return CallResult(DONE.outcome, replies=tuple(replies), rows=tuple(rows)) if replies else DONE

    def failure(self, error: BaseException) -> CallResult:
        """The error as a result; an interrupt by the user is raised again."""
        if _is_ours(error):
            raise error
        return results.of_error(error, self._environment.retry)


def is_plain(handler: Handler, environment: CallEnvironment) -> bool:
    """Whether there is no middleware, and the handler takes one body and nothing else."""
    signature = handler.signature
    return (
        not environment.middleware.layers
        and not signature.by_type
        and not signature.batch
        and signature.body is not None
    )


def _leave(token: contextvars.Token[Context | None]) -> None:
    """Reset `current`, unless a discarded coroutine ends in the context where the garbage collector happens to run."""
    with contextlib.suppress(ValueError):
        current.reset(token)


def ended(result: Any, failure: BaseException | None, before: int) -> Any:
    """Return the value or raise the error. If the handler forked, the child process ends here; the parent continues."""
    if forks[0] != before and not (failure is not None and _is_ours(failure)):
        _end_fork(failure)
    if failure is not None:
        raise failure
    return result


def _is_ours(error: BaseException) -> bool:
    """Whether this is Ctrl-C in the main thread rather than an error of the handler."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def _in_task() -> bool:
    asyncio = sys.modules["asyncio"]
    return loop_runs_here() and asyncio.current_task() is not None


def _end_fork(error: BaseException | None) -> NoReturn:
    """End the child process of a handler that forked; the parent settles the message."""
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
