"""The other side of a process crew: runs handlers in a process that may crash without taking anyone along."""

from __future__ import annotations

import os
import pickle
import signal
from multiprocessing.connection import Connection
from typing import Any, Final

from remuda.bus import outcome
from remuda.bus.context import Context
from remuda.bus.handler import Handler
from remuda.bus.invoke import Call
from remuda.bus.middleware import Stack
from remuda.bus.outcome import Outcome
from remuda.model.message import Message

Request = list[tuple[int, list[tuple[Message, int]]]]
"""Calls to make: the handler's number, and its messages with their attempts."""

_link: Connection | None = None
"""The way to the parent, in a process that has one."""

OUTCOME: Final = "outcome"
PUBLISH: Final = "publish"


def ask_parent(verb: str, arguments: tuple[Any, ...]) -> Any:
    """Have the parent, which owns the broker, do something for a handler here."""
    assert _link is not None
    _link.send((verb, arguments))
    answer = _link.recv()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def in_child() -> bool:
    return _link is not None


def main(link: Connection, queue: str, handlers: list[Handler], stack: Stack, encoding: str) -> None:
    """Serve one parent until it hangs up."""
    global _link
    _link = link
    # The terminal's interrupt is for the parent, which stops its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            requests: Request = link.recv()
        except (EOFError, OSError):
            os._exit(0)
        for number, messages in requests:
            handler = handlers[number]
            contexts = [Context(message, queue, handler.id, attempt) for message, attempt in messages]
            link.send((OUTCOME, _run(Call(handler, contexts, stack, encoding), handler)))


def _run(call: Call, handler: Handler) -> Outcome:
    try:
        if handler.is_async:
            import asyncio

            return asyncio.run(call.run_async())
        return call.run()
    except BaseException as error:
        return outcome.of_error(error)


def check_portable(handlers: list[Handler], stack: Stack) -> None:
    """Raise `TypeError` for what cannot be sent to another process."""
    try:
        pickle.dumps((handlers, stack))
    except Exception as error:
        raise TypeError(
            f"{handlers[0].id} cannot run in a process: {error}. A handler for the process executor must be a function "
            "at the top level of an importable module, and its middleware must be picklable"
        ) from error
