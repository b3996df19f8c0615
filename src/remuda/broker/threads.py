"""A broker for threads: commands are built, submitted, and waited for."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from remuda.broker import checks
from remuda.broker.delivery import BaseDelivery, Delivery, Runs
from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.embedded.locks.reentrancy import is_refusal
from remuda.broker.embedded.pending import Pending
from remuda.broker.port import Broker, Subscription
from remuda.core.effects import Dispatch
from remuda.model.errors import CommitTimeout, LookAgain, StorageError
from remuda.model.operations.commands import Command, Publish, Pull, Renew, SetCredit, Settle, Subscribe, Unsubscribe
from remuda.model.operations.results import Differences, Receipt, Removed
from remuda.model.settlement import Settlement
from remuda.model.values.durations import SECOND, Duration, micros

if TYPE_CHECKING:
    from remuda.broker.backend import Backend
    from remuda.broker.coroutines import AsyncEmbeddedBroker
    from remuda.broker.waits import Waits
    from remuda.log.repair.recovery import RecoveryReport

NOT_YET = "no consumer has answered yet; the message is kept and will be delivered"


class EmbeddedBroker(Broker):
    """The port for threads, on a `Backend`."""

    _backend: Backend

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._aio: AsyncEmbeddedBroker | None = None

    @property
    def runtime(self) -> Any:
        """What executes the commands."""
        return self._backend

    def now(self) -> int:
        return self._backend.clock()

    @property
    def recovery(self) -> RecoveryReport:
        """What was cut or lost when the log was opened."""
        return self._backend.recovery

    @property
    def aio(self) -> AsyncEmbeddedBroker:
        """The same broker for coroutines."""
        if self._aio is None:
            from remuda.broker.coroutines import AsyncEmbeddedBroker

            self._aio = AsyncEmbeddedBroker(self._backend)
            self._aio.place = self.place
        return self._aio

    # Publishing and consuming

    def _publish(self, command: Publish, once: str | None, timeout: Duration | None) -> Receipt:
        pending = self._backend.submit(command) if once is None else self._submit_once(command, once)
        if pending.ticket:
            self._backend.wait(pending.ticket)
        if pending.confirmed is not None:
            self._finish(pending, timeout)
        receipt: Receipt = pending.result
        return receipt

    def _submit_once(self, command: Publish, once: str) -> Pending:
        ever, own = checks.lives(once), checks.id_for_once(command)
        while True:
            upto, found = self._backend.known(own)
            with contextlib.suppress(LookAgain):
                return self._backend.submit(checks.published_once(command, bool(ever), upto, found))

    def _new_tag(self) -> int:
        return self._backend.new_tag()

    def _subscribe(self, command: Subscribe) -> EmbeddedSubscription:
        inbox = Inbox()
        pending = self._backend.submit(command, inbox)
        try:
            differs = self._finish(pending)
        except BaseException:
            self._backend.leave(command.queue, command.consumer)
            raise
        return EmbeddedSubscription(self, command, inbox, differs)

    def pull_while(self, waits: Waits, queue: str, count: int, timeout: Duration) -> Delivery | None:
        """A pull that ends before its time when `waits` do."""
        return self._pull(checks.pull(self._new_tag(), queue, None, count, False, "none", timeout), waits)

    def _pull(self, command: Pull, waits: Waits | None = None) -> Delivery | None:
        backend, tag = self._backend, command.tag
        inbox = Inbox() if command.wait else None
        pending = backend.submit(command, inbox)
        found: Dispatch | None = None
        try:
            if pending.ticket:
                try:
                    backend.wait(pending.ticket)
                except StorageError:
                    backend.abandon_pull(pending, command, inbox)
                    raise
            found = pending.result
            if found is not None and pending.held is not None:
                return Delivery(found, pending.held, self._settle, backend.track)
            if found is None and inbox is not None:
                with nullcontext() if waits is None else waits.waiting(inbox):
                    found = inbox.get(command.wait / SECOND)
                if found is None and not inbox.closed and not backend.cancel_pull(command.queue, tag):
                    found = inbox.get(None)
                backend.forget_pull(tag)
                if found is None:
                    backend.check_stalled()
            return None if found is None else self._deliver(found)
        except BaseException as error:
            # Interrupted, by Ctrl-C or whatever a signal's handler raises: put back what was, or will be, sent to the
            # caller.
            if is_refusal(error):
                raise
            if found is not None and pending.result is None:
                backend.give_back(found)
            else:
                backend.abandon_pull(pending, command, inbox)
            raise

    def _renew(self, queue: str, lease: int) -> bool:
        renewed: bool = self._backend.submit(Renew(queue, lease)).result
        return renewed

    # The log

    def checkpoint(self) -> None:
        """Make the next start begin at this point of the log. The broker does this by itself as the log grows."""
        self._backend.checkpoint()

    def collect(self) -> Removed:
        """Remove what is past its retention. The broker does this by itself every `collect_interval`."""
        return self._backend.collect()

    def when_stopped(self, call: Callable[[StorageError], None]) -> None:
        """Have `call` called, on some thread, with the reason if the broker stops for good by itself."""
        stopped = getattr(self._backend, "stopped", None)
        if stopped is not None:
            stopped.add_done_callback(lambda done: call(done.result()))

    def close(self) -> None:
        self._backend.close()

    # Executing commands

    def _do(self, command: Command) -> Any:
        return self._finish(self._backend.submit(command))

    def _finish(self, pending: Pending, timeout: Duration | None = None) -> Any:
        self._backend.wait(pending.ticket)
        if pending.confirmed is not None:
            try:
                pending.confirmed.result(None if timeout is None else micros(timeout) / SECOND)
            except concurrent.futures.TimeoutError:
                raise CommitTimeout(NOT_YET) from None
        return pending.result

    def _deliver(self, dispatch: Dispatch) -> Delivery | None:
        dispatch, messages = self._backend.load(dispatch)
        return Delivery(dispatch, messages, self._settle, self._backend.track) if messages.bodies else None

    def _settle(self, delivery: BaseDelivery[int], settlement: Settlement, runs: Runs | None, wait: bool) -> int:
        if delivery.lease is None:
            return 0
        pending = self._backend.submit(Settle(delivery.queue, delivery.lease, settlement, runs), wait=wait)
        if pending.ticket:
            self._backend.wait(pending.ticket)
        settled: int = pending.result
        return settled


class EmbeddedSubscription(Subscription):
    """A consumer's deliveries, for a thread."""

    def __init__(self, broker: EmbeddedBroker, command: Subscribe, inbox: Inbox, differs: Differences) -> None:
        super().__init__(command, differs)
        self._broker = broker
        self._inbox = inbox
        self._tag = command.tag

    def _receive(self, wait: float | None) -> Delivery | None:
        while (dispatch := self._inbox.get(wait)) is not None:
            taken = self._broker._backend.hand_over(dispatch, self._inbox)
            try:
                delivery = None if taken is None else self._broker._deliver(taken)
            except BaseException as error:
                if taken is not None and not is_refusal(error):
                    self._inbox.put_back(taken)
                raise
            if delivery is not None:
                return delivery
        if not self._inbox.closed:
            self._broker._backend.check_stalled()
        return None

    def _set_credit(self, credit: int) -> None:
        self._broker._do(SetCredit(self.queue, self.consumer, credit))

    def _close(self, keep: bool) -> None:
        backend = self._broker._backend
        if not backend.closed:
            self._broker._finish(backend.submit(Unsubscribe(self.queue, self.consumer, keep=keep)))
            if keep:
                backend.forget_inbox(self._tag)
        self._inbox.close()
