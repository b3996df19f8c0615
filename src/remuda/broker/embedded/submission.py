"""The one way in, and the short way of a record from there to the log. In C where that could be built.

A command is carried out by its verb, under the lock, unless nothing can be kept. What comes of a single message is
mostly one record that concerns nobody but who caused it, and where nobody else writes it is written at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from remuda.broker.embedded.clock import Clock
from remuda.broker.embedded.commit import GroupCommit
from remuda.broker.embedded.inbox import Inbox
from remuda.broker.embedded.mutex import Mutex
from remuda.broker.embedded.pending import Pending
from remuda.core.effects import Effects
from remuda.model.commands import Command
from remuda.model.errors import StorageError
from remuda.model.records import Appended, Events
from remuda.native import submission

_STORM: Final = 10
Verb = Callable[[Any, int, Inbox | None, bool], Pending]


class PlainSubmission:
    """What every call goes through. Whatever is out of the ordinary is left to the class that is built on this."""

    lock: Mutex
    clock: Clock
    _verbs: dict[type, Verb]
    """Of the commands that have one of their own."""
    _closed: bool
    _group: GroupCommit
    _stalled: StorageError | None
    """Why nothing at all can be kept just now. What was accepted before waits in memory for its turn."""
    _waiting: set[int]
    """The threads that wait until something is kept, or keep it. What interrupts one of them, like a signal's handler
    or a finalizer, cannot wait for that thread: it would never go on."""
    _ticket: int
    _deferred: int
    """The ticket of answers that go with whatever is written next."""
    _outbox: list[Effects]
    _must_sync: bool
    _syncs: bool
    _gathers: bool
    """Whether records need not be written, or even encoded, before somebody asks for them."""
    _replicates: bool
    fence: Callable[[], None] | None
    """Raises if the directory is not ours any more. Asked before something is written, if that was not lately."""
    _fence_until: float
    _hold: Callable[[Appended | Events], int]
    _write_single: Callable[[Appended | Events], int]
    _pend_single: Callable[[Appended | Events], int]
    """The log's own: they give a record's size, or 0, and then nothing was done."""
    _sync_single: Callable[[], bool]
    """The log's own, too: where everything is written, it syncs that."""
    _sync_by: int
    """When what was deferred is to be synced, unless something else is before."""

    def submit(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """Carry out a command. Deliveries of its subscription, or pull, will come to `inbox`.

        Without `wait` an answer goes with whatever is written next, unless others wait for what comes of it.
        """
        if self.lock.owned() or (wait and threading.get_ident() in self._waiting):
            self._check_caller()
        with self.lock:
            if self._closed or self._group.failure is not None or self._stalled is not None:
                return self._refuse(command)
            try:
                carry_out = self._verbs.get(type(command)) or self._change
                return carry_out(command, self.clock(), inbox, wait)
            except BaseException as error:
                struck = error
                for _ in range(_STORM):
                    # What else is raised meanwhile, as by Ctrl-C once more, comes from outside: it must not keep a
                    # broker from being stopped whose queues are half changed, and is told afterwards.
                    try:
                        pending = self._mend(command, error)
                    except BaseException as raised:
                        if raised is error:
                            break
                        struck = raised
                    else:
                        if struck is error:
                            return pending
                        break
                raise struck  # noqa: B904 - mostly it is the error itself, with its own cause

    def _keep(self, record: Appended | Events, durable: bool) -> int:
        """Keep one record that concerns nobody but who caused it, and after which time demands no more than before. The
        ticket says how far the log must be kept for it to count; 0 if it is.

        What is to be synced is written at once, too: whoever waits for it has only that left to do."""
        self._ticket = ticket = self._ticket + 1
        syncs = durable and self._syncs
        try:
            if self._gathers:
                if self._hold(record):
                    if not self._deferred:
                        self._defer(record)
                    self._deferred = ticket
                    return 0
            elif self._replicates:
                pass
            elif self._outbox or self._must_sync or self._group.busy:
                if self._pend_single(record):
                    self._must_sync = self._must_sync or syncs
                    return ticket
            elif self.fence is None or monotonic() <= self._fence_until:
                self._must_sync = syncs
                if self._write_single(record):
                    if syncs:
                        return ticket
                    self._deferred = 0
                    self._group.reached = ticket
                    return 0
        except BaseException as error:
            self._pass_or_fail(error)
            return ticket  # whoever waits for it tries again
        return self._keep_somehow(record, durable)

    def wait(self, ticket: int) -> None:
        """Return when everything up to this ticket is kept."""
        if not ticket:
            return
        caller = threading.get_ident()
        if caller in self._waiting:
            self._check_caller()
        try:
            self._waiting.add(caller)
            self._group.wait(ticket)
        finally:
            self._waiting.discard(caller)

    def _check_caller(self) -> None:
        """Refuse who is inside already."""
        raise NotImplementedError

    def _refuse(self, command: Command) -> Pending:
        """Nothing can be kept just now."""
        raise NotImplementedError

    def _change(self, command: Command, now: int, inbox: Inbox | None, wait: bool) -> Pending:
        """Any other command."""
        raise NotImplementedError

    def _mend(self, command: Command, error: BaseException) -> Pending:
        """Carrying out a command ended in an error."""
        raise NotImplementedError

    def _keep_somehow(self, record: Appended | Events, durable: bool) -> int:
        """As `_keep`, where the short way does not lead on."""
        raise NotImplementedError

    def _defer(self, record: Appended | Events) -> None:
        """The first record after all others were written waits."""
        raise NotImplementedError

    def _sync_failed(self, error: BaseException) -> None:
        """A sync for which everything was written ended in an error: raise what those who wait for it are told."""
        raise NotImplementedError

    def _pass_or_fail(self, error: BaseException) -> None:
        """Raise what is the end; what may succeed later is tried again."""
        raise NotImplementedError


if TYPE_CHECKING or submission is None:  # noqa: SIM108
    Submission = PlainSubmission
else:
    Submission = submission.Submission
