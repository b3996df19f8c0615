"""The way from a handler's process to its parent, which owns the broker."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from remuda.model.errors import RemudaError
from remuda.model.messages import Messages

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class ParentConnection:
    """The way to the parent, which owns the broker. Any thread of the child may use it."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._guard = threading.Lock()
        self._process = os.getpid()

    def publish(self, messages: Messages) -> list[str]:
        """Have the parent publish, and give the ids."""
        answer: list[str] = self.ask(messages)
        return answer

    def ask(self, question: Any) -> Any:
        """The parent's answer to what `Bus.serve_process` understands."""
        if os.getpid() != self._process:
            raise RemudaError("a fork of a handler's process cannot publish; let the handler itself do it")
        with self._guard:
            self._link.send(question)
            answer = self._link.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


_parent: ParentConnection | None = None


def parent() -> ParentConnection | None:
    """The way to the parent, in a process that has one."""
    return _parent


def set_parent(connection: ParentConnection) -> None:
    global _parent
    _parent = connection
