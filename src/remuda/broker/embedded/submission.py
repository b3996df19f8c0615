"""How every command is executed, and the fast path of its record to the log. In C where that could be built.

A command is executed by its verb, under the lock, unless nothing can be stored. A single message mostly makes one
record that concerns only its caller, and if no other thread writes, the record is written at once.
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
    """The path of every command. Whatever is unusual is left to the subclass."""

    lock: Mutex
    clock: Clock
    _verbs: dict[type, Verb]
    """The verbs of commands that have one of their own."""
    _closed: bool
    _group: GroupCommit
    _stalled: StorageError | None
    """Why nothing can be stored at present. What was accepted before waits in memory."""
    _waiting: set[int]
    """The threads that wait until something is stored, or store it. A signal handler or finalizer that interrupts one
    of them must not wait, too: the thread could never go on."""
    _ticket: int
    _deferred: int
    """The ticket of records that are written together with the next one."""
    _outbox: list[Effects]
    _must_sync: bool
    _syncs: bool
    _gathers: bool
    """Whether records need not be written, or even encoded, before they are read."""
    _replicates: bool
    fence: Callable[[], None] | None
    """Raises if the directory is no longer ours. Called before a write, unless it was called just before."""
    _fence_until: float
    _hold: Callable[[Appended | Events], int]
    _write_single: Callable[[Appended | Events], int]
    _pend_single: Callable[[Appended | Events], int]
    """Methods of the log that return the record's size, or 0 if they did nothing."""
    _sync_single: Callable[[], bool]
    """A method of the log that syncs what is written, if nothing is still to be written."""
    _sync_by: int
    """When deferred records must be synced, unless another sync comes first."""

    def submit(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """Execute a command. Deliveries for its subscription, or pull, will come to `inbox`.

        Without `wait`, an answer is written together with the next record, unless others wait for its effects.
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
                    # Another error meanwhile, as by a second Ctrl-C, comes from outside: it must not keep a broker
                    # whose queues are half changed from being stopped, and is raised afterwards.
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
        """Store one record that concerns only its caller, and makes nothing due sooner. It counts once everything up to
        the returned ticket is stored; 0 if it already does.

        A record that must be synced is written at once, too: the thread that waits for it has only to sync."""
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
            return ticket  # the thread that waits for it tries again
        return self._keep_somehow(record, durable)

    def wait(self, ticket: int) -> None:
        """Return when everything up to this ticket is stored."""
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
        """Refuse a thread that is within another call."""
        raise NotImplementedError

    def _refuse(self, command: Command) -> Pending:
        """Refuse a command: nothing can be stored at present."""
        raise NotImplementedError

    def _change(self, command: Command, now: int, inbox: Inbox | None, wait: bool) -> Pending:
        """Execute a command that has no verb of its own."""
        raise NotImplementedError

    def _mend(self, command: Command, error: BaseException) -> Pending:
        """Handle an error in a command: raise it, or return what counts as the command's result."""
        raise NotImplementedError

    def _keep_somehow(self, record: Appended | Events, durable: bool) -> int:
        """As `_keep`, if the fast path does not apply."""
        raise NotImplementedError

    def _defer(self, record: Appended | Events) -> None:
        """Plan to write this record, the first that waits since all others were written."""
        raise NotImplementedError

    def _sync_failed(self, error: BaseException) -> None:
        """Handle an error in a sync of what was written: raise the error for those that wait."""
        raise NotImplementedError

    def _pass_or_fail(self, error: BaseException) -> None:
        """Raise an error that is final; one that may pass is ignored, since the write is tried again."""
        raise NotImplementedError


if TYPE_CHECKING or submission is None:  # noqa: SIM108
    Submission = PlainSubmission
else:
    Submission = submission.Submission
