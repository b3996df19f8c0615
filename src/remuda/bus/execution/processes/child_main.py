"""Runs in each process of a pool: calls handlers, and may crash without taking anything else down."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

import msgspec

from remuda.bus.broker_api import BaseDelivery, in_hand
from remuda.bus.execution.processes import shared_progress as shared
from remuda.bus.execution.processes.parent import ParentConnection, set_parent
from remuda.bus.execution.processes.shared_progress import SharedProgress
from remuda.bus.handlers import result as results
from remuda.bus.handlers.call import HandlerCall
from remuda.bus.handlers.context import tell_to_stop
from remuda.bus.handlers.dispatcher import Dispatcher
from remuda.bus.handlers.result import DONE, CallResult
from remuda.model.errors import InvalidOption
from remuda.model.messages import Messages

# What the child sends: a word, the number of the batch it is about, and a result, if any.
READY: Final = "ready"
TOLD: Final = "told"
"""A call finished with this result, for which the shared memory has no room."""
CLOSED: Final = "closed"
"""The answer to a recall: from now on no call begins in this batch."""
OVER: Final = "over"
"""The last word of a batch."""


UNAWARE: Final = "unaware"
"""The answer to a cancellation: the handler of this row runs, and does not look at its stop token."""


STOP: Final = -1
"""In place of a batch's number, from the parent: the bus is asked to stop."""


class CallBatch(msgspec.Struct, frozen=True):
    """Messages to handle, with their attempts. The shared memory says what became of each row."""

    number: int
    messages: Messages
    attempts: list[int]
    redelivered: list[bool]
    offsets: list[int] = []
    lease: int | None = None


class CancelRow(msgspec.Struct, frozen=True):
    """A message of a batch is to end with this result."""

    number: int
    row: int
    result: CallResult


class Pipes(msgspec.Struct, frozen=True):
    """The child's ends of three connections: batches and their results, recalls, and what handlers publish."""

    link: Connection
    recalls: Connection
    asking: Connection

    def close(self) -> None:
        for end in (self.link, self.recalls, self.asking):
            end.close()


class BatchDelivery(BaseDelivery[NoReturn]):
    """The messages of a batch as a delivery, which only the parent settles."""

    def __init__(self, batch: CallBatch) -> None:
        runs = [(offset, 1) for offset in batch.offsets or range(len(batch.messages))]
        dispatch = in_hand(runs, batch.attempts, tuple(batch.redelivered), batch.lease)
        super().__init__(dispatch, batch.messages, _settled_by_parent)


def _settled_by_parent(*_: Any) -> NoReturn:
    raise NotImplementedError("the parent settles what was handled here")


class CallServer:
    """Works through one batch after the other. A recall closes the batch, from another thread, while a handler runs."""

    def __init__(self, pipes: Pipes, shared: SharedProgress, dispatcher: Dispatcher) -> None:
        self._link = pipes.link
        self._recalls = pipes.recalls
        self._shared = shared
        self._dispatcher = dispatcher
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._open: int | None = None
        """The batch in which calls may begin."""
        self._delivery: tuple[int, BatchDelivery] | None = None
        self._dropped: set[int] = set()
        """Its rows that were cancelled before they began."""
        self._begun: list[int] = []

    def serve(self) -> NoReturn:
        threading.Thread(target=self._hear_recalls, name="remuda-parent", daemon=True).start()
        self._say(READY)
        while True:
            batch: CallBatch = pickle.loads(self._link.recv_bytes())
            with self._guard:
                self._open = batch.number
                self._delivery = batch.number, BatchDelivery(batch)
                self._dropped, self._begun = set(), []
            self._work_through(batch)
            self._say(OVER, batch.number)

    def _work_through(self, batch: CallBatch) -> None:
        for rows, call in self._calls(batch):
            with self._guard:
                if self._open is None:
                    return
                if not self._dropped.isdisjoint(rows):
                    continue  # what is beside it in its list stays as it is, and comes again
                self._begun = rows
                self._shared.begin(rows)
            finished = call if isinstance(call, CallResult) else self._run(call)
            if finished is DONE:
                self._shared.mark(rows, shared.DONE)
            else:
                self._tell(batch.number, rows, finished)

    def _calls(self, batch: CallBatch) -> Iterable[tuple[list[int], HandlerCall | CallResult]]:
        assert self._delivery is not None
        calls = self._dispatcher.calls(self._delivery[1])
        if not self._dispatcher.takes_lists:
            return calls
        # Bodies for a list are decoded before its call begins. Whatever crashes in there counts as an attempt of all,
        # and next time each has a call of its own.
        everything = range(len(batch.messages))
        self._shared.begin(everything)
        made = list(calls)
        self._shared.mark(everything, shared.WAITING)
        return made

    def _run(self, call: HandlerCall) -> CallResult:
        try:
            return call.run()
        except BaseException as error:
            if os.getpid() != self._process:
                os._exit(1)
            return results.of_error(error)

    def _tell(self, number: int, rows: list[int], finished: CallResult) -> None:
        try:
            text = pickle.dumps((rows, msgspec.structs.replace(finished, error=None)))
        except Exception as error:
            failed = msgspec.structs.replace(results.of_error(error), error=None)
            text = pickle.dumps((rows, failed))
        if not self._shared.write(text):
            self._say(TOLD, number, text)
        self._shared.mark(rows, shared.TOLD)

    def _say(self, word: str, number: int = 0, text: bytes = b"") -> None:
        with self._guard:
            self._link.send_bytes(pickle.dumps((word, number, text)))

    def _hear_recalls(self) -> None:
        try:
            while True:
                number: int | CancelRow = self._recalls.recv()
                if isinstance(number, CancelRow):
                    self._cancel(number)
                    continue
                if number == STOP:
                    self._dispatcher.stop.set()
                    continue
                with self._guard:
                    known = self._open == number
                    if known:
                        self._open = None
                if known:
                    self._say(CLOSED, number)
        except (EOFError, OSError):
            # The parent is gone, and others will be given the messages that are in hand here.
            os._exit(0)

    def _cancel(self, wanted: CancelRow) -> None:
        number, row = wanted.number, wanted.row
        with self._guard:
            if self._delivery is None or self._delivery[0] != number or row in self._dropped:
                return
            delivery, begun = self._delivery[1], self._begun
            waits = self._shared.mark_of(row) == shared.WAITING
            if waits:
                self._dropped.add(row)
        if waits:
            self._tell(number, [row], wanted.result)
        elif row in begun and not tell_to_stop(delivery, begun[0]):
            self._say(UNAWARE, number, b"%d" % row)


def main(pipes: Pipes, memory: Any, size: int, dispatcher: Dispatcher) -> None:
    """Serve one parent until it hangs up."""
    set_parent(ParentConnection(pipes.asking))
    # The terminal's interrupt is for the parent, which stops its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        CallServer(pipes, SharedProgress(memory, size), dispatcher).serve()
    except (EOFError, OSError):
        os._exit(0)


def check_portable(dispatcher: Dispatcher) -> None:
    """Refuse what cannot be sent to another process."""
    try:
        pickle.dumps(dispatcher)
    except Exception as error:
        raise InvalidOption(
            f"{dispatcher.handlers[0].id} cannot run in a process: {error}. A handler for the process executor must be "
            "a function at the top level of an importable module, and its middleware must be picklable"
        ) from error
