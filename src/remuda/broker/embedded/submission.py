"""How every command is executed: under the lock, by its verb, unless nothing can be stored."""

from __future__ import annotations

from threading import get_ident
from typing import Final

from remuda.broker.embedded.clock import Clock
from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.embedded.locks.mutex import Mutex
from remuda.broker.embedded.pending import Pending
from remuda.broker.embedded.storing.group_commit import GroupCommit
from remuda.broker.embedded.storing.write_progress import STALLED, TORN
from remuda.model.operations.commands import Command

_STORM: Final = 10


class Submission:
    """The path of every command. Whatever is unusual is left to the subclass."""

    lock: Mutex
    clock: Clock
    _standing: int
    """How far what was recorded has come: see `standing`."""
    _group: GroupCommit
    _waiting: set[int]
    """The threads that wait until something is stored, or store it. A signal handler or finalizer that interrupts one
    of them must not wait, too: the thread could never go on."""

    def submit(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """Execute a command. Deliveries for its subscription, or pull, will come to `inbox`.

        Without `wait`, an answer is written together with the next record, unless others wait for its effects.
        """
        if self.lock.owned() or (wait and self._waiting and get_ident() in self._waiting):
            self._check_caller()
        while True:
            with self.lock:
                if self._standing < STALLED and self._group.failure is None:
                    try:
                        return self._carry_out(command, self.clock(), inbox, wait)
                    except BaseException as error:
                        return self._recover(command, error)
                if self._standing != TORN:
                    return self._refuse(command)
            self._await_restoration()

    def _recover(self, command: Command, error: BaseException) -> Pending:
        """Handle an error in a command once and for all."""
        struck = error
        for _ in range(_STORM):
            # Another error meanwhile, as by a second Ctrl-C, comes from outside: it must not keep a broker whose
            # queues are half changed from being stopped, and is raised afterwards.
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
        raise struck

    def wait(self, ticket: int) -> None:
        """Return when everything up to this ticket is stored."""
        if not ticket:
            return
        caller = get_ident()
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

    def _await_restoration(self) -> None:
        """Return when the queues are whole again."""
        raise NotImplementedError

    def _refuse(self, command: Command) -> Pending:
        """Refuse a command: nothing can be stored at present."""
        raise NotImplementedError

    def _carry_out(self, command: Command, now: int, inbox: Inbox | None, wait: bool) -> Pending:
        """Execute a command by its verb."""
        raise NotImplementedError

    def _mend(self, command: Command, error: BaseException) -> Pending:
        """Handle an error in a command: raise it, or return what counts as the command's result."""
        raise NotImplementedError
