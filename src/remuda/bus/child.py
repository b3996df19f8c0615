"""The other side of a process crew: runs handlers in a process that may crash without taking anyone along."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

from remuda.bus import outcome
from remuda.bus.context import Context
from remuda.bus.handler import Handler
from remuda.bus.invoke import Call
from remuda.bus.middleware import Stack
from remuda.bus.outcome import Outcome
from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.message import Message

Request = tuple[int, list[tuple[Message, int]]]
"""A call to make: the handler's number, and its messages with their attempts."""

READY: Final = "ready"
"""What the child says first; outcomes follow."""
RECALL: Final = "recall"
"""What the parent says to have back the calls that have not begun; the child answers with their number."""


class Line:
    """The way to the parent, which owns the broker. Any thread of the child may use it."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._guard = threading.Lock()
        self._process = os.getpid()

    def publish(self, messages: Sequence[Message]) -> list[str]:
        """Have the parent publish, and give the ids."""
        if os.getpid() != self._process:
            raise RemudaError("a fork of a handler's process cannot publish; let the handler itself do it")
        with self._guard:
            self._link.send(list(messages))
            answer = self._link.recv()
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, list)
        return answer


_line: Line | None = None


def line() -> Line | None:
    """The way to the parent, in a process that has one."""
    return _line


class Tray:
    """Calls that were asked for and have not begun. A thread takes them in while a handler runs."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._waiting: deque[Request] = deque()
        self._change = threading.Condition()
        threading.Thread(target=self._listen, name="remuda-parent", daemon=True).start()

    def next(self) -> Request:
        with self._change:
            self._change.wait_for(lambda: self._waiting)
            return self._waiting.popleft()

    def say(self, what: Outcome | int | str) -> None:
        with self._change:
            self._link.send(what)

    def _listen(self) -> None:
        try:
            while True:
                asked = self._link.recv()
                with self._change:
                    if asked == RECALL:
                        self._link.send(len(self._waiting))
                        self._waiting.clear()
                    else:
                        self._waiting.extend(asked)
                        self._change.notify()
        except (EOFError, OSError):
            # The parent is gone, and others will be given the message that is in hand here.
            os._exit(0)


def main(
    link: Connection, asking: Connection, queue: str, handlers: list[Handler], stack: Stack, encoding: str
) -> None:
    """Serve one parent until it hangs up."""
    global _line
    _line = Line(asking)
    # The terminal's interrupt is for the parent, which stops its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tray = Tray(link)
    try:
        tray.say(READY)
        while True:
            number, messages = tray.next()
            handler = handlers[number]
            contexts = [Context(message, queue, handler.id, attempt) for message, attempt in messages]
            tray.say(_run(Call(handler, contexts, stack, encoding)))
    except OSError:
        os._exit(0)


def _run(call: Call) -> Outcome:
    try:
        return call.run()
    except BaseException as error:
        return outcome.of_error(error)


def check_portable(handlers: Sequence[Handler], stack: Stack) -> None:
    """Refuse what cannot be sent to another process."""
    try:
        pickle.dumps((list(handlers), stack))
    except Exception as error:
        raise InvalidOption(
            f"{handlers[0].id} cannot run in a process: {error}. A handler for the process executor must be a function "
            "at the top level of an importable module, and its middleware must be picklable"
        ) from error
