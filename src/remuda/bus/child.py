"""The other side of a process crew: runs handlers in a process that may crash without taking anyone along."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

import msgspec

from remuda.broker.delivery import Answers
from remuda.bus import outcome, slate
from remuda.bus.duties import Duties
from remuda.bus.invoke import Call
from remuda.bus.outcome import DONE, Outcome
from remuda.bus.slate import Slate
from remuda.core.effects import Sending
from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.messages import Messages

# What the child says by the line: a word, the number of the round that it is about, and an outcome, if any.
READY: Final = "ready"
TOLD: Final = "told"
"""A call ended with this outcome, for which the slate has no room."""
CLOSED: Final = "closed"
"""The answer to a recall: from now on no call begins in this round."""
OVER: Final = "over"
"""The last word of a round."""


class Round(msgspec.Struct, frozen=True):
    """Messages to handle, with their attempts. The slate says what became of each row."""

    number: int
    messages: Messages
    attempts: list[int]


class Lines(msgspec.Struct, frozen=True):
    """The child's ends: for rounds and what is said of them, for recalls, for what handlers ask."""

    link: Connection
    recalls: Connection
    asking: Connection

    def close(self) -> None:
        for end in (self.link, self.recalls, self.asking):
            end.close()


class Line:
    """The way to the parent, which owns the broker. Any thread of the child may use it."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._guard = threading.Lock()
        self._process = os.getpid()

    def publish(self, messages: Messages) -> list[str]:
        """Have the parent publish, and give the ids."""
        if os.getpid() != self._process:
            raise RemudaError("a fork of a handler's process cannot publish; let the handler itself do it")
        with self._guard:
            self._link.send(messages)
            answer = self._link.recv()
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, list)
        return answer


_line: Line | None = None


def line() -> Line | None:
    """The way to the parent, in a process that has one."""
    return _line


class Given(Answers[NoReturn]):
    """The messages of a round as a delivery, whose answers are not given here."""

    def __init__(self, round: Round) -> None:
        runs = [(row, 1) for row in range(len(round.messages))]
        super().__init__(Sending("", "", None, runs, round.attempts, 0), round.messages)

    def _settle(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("the parent settles what was handled here")


class Desk:
    """Works through one round after the other. A recall closes the round, from another thread, while a handler runs."""

    def __init__(self, lines: Lines, slate: Slate, duties: Duties) -> None:
        self._link = lines.link
        self._recalls = lines.recalls
        self._slate = slate
        self._duties = duties
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._open: int | None = None
        """The round in which calls may begin."""

    def serve(self) -> NoReturn:
        threading.Thread(target=self._hear_recalls, name="remuda-parent", daemon=True).start()
        self._say(READY)
        while True:
            round: Round = pickle.loads(self._link.recv_bytes())
            with self._guard:
                self._open = round.number
            self._work_through(round)
            self._say(OVER, round.number)

    def _work_through(self, round: Round) -> None:
        for rows, call in self._calls(round):
            with self._guard:
                if self._open is None:
                    return
                self._slate.begin(rows)
            ended = call if isinstance(call, Outcome) else self._run(call)
            if ended is DONE:
                self._slate.mark(rows, slate.DONE)
            else:
                self._tell(round.number, rows, ended)

    def _calls(self, round: Round) -> Iterable[tuple[list[int], Call | Outcome]]:
        calls = self._duties.calls(Given(round))
        if not self._duties.takes_lists:
            return calls
        # Bodies for a list are decoded before its call begins. Whatever crashes in there counts as an attempt of all,
        # and next time each has a call of its own.
        everything = range(len(round.messages))
        self._slate.begin(everything)
        made = list(calls)
        self._slate.mark(everything, slate.WAITING)
        return made

    def _run(self, call: Call) -> Outcome:
        try:
            return call.run()
        except BaseException as error:
            if os.getpid() != self._process:
                os._exit(1)
            return outcome.of_error(error)

    def _tell(self, number: int, rows: list[int], ended: Outcome) -> None:
        try:
            text = pickle.dumps((rows, ended))
        except Exception as error:
            text = pickle.dumps((rows, outcome.of_error(error)))
        if not self._slate.write(text):
            self._say(TOLD, number, text)
        self._slate.mark(rows, slate.TOLD)

    def _say(self, word: str, number: int = 0, text: bytes = b"") -> None:
        with self._guard:
            self._link.send_bytes(pickle.dumps((word, number, text)))

    def _hear_recalls(self) -> None:
        try:
            while True:
                number: int = self._recalls.recv()
                with self._guard:
                    known = self._open == number
                    if known:
                        self._open = None
                if known:
                    self._say(CLOSED, number)
        except (EOFError, OSError):
            # The parent is gone, and others will be given the messages that are in hand here.
            os._exit(0)


def main(lines: Lines, memory: Any, size: int, duties: Duties) -> None:
    """Serve one parent until it hangs up."""
    global _line
    _line = Line(lines.asking)
    # The terminal's interrupt is for the parent, which stops its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Desk(lines, Slate(memory, size), duties).serve()
    except (EOFError, OSError):
        os._exit(0)


def check_portable(duties: Duties) -> None:
    """Refuse what cannot be sent to another process."""
    try:
        pickle.dumps(duties)
    except Exception as error:
        raise InvalidOption(
            f"{duties.handlers[0].id} cannot run in a process: {error}. A handler for the process executor must be a "
            "function at the top level of an importable module, and its middleware must be picklable"
        ) from error
