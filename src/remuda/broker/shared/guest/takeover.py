"""A guest becomes the host: what was under way with the last host goes on in the engine of this process."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.model.errors import NotFound, RemudaError
from remuda.model.operations.commands import Publish, Pull, Reclaim, RemoveExchange, RemoveQueue, Settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remuda.broker.embedded.delivering.inbox import Inbox
    from remuda.broker.embedded.pending import Pending
    from remuda.broker.embedded.runtime import Runtime
    from remuda.broker.shared.guest.open_state import OpenState
    from remuda.broker.shared.guest.request import Request


class Takeover:
    """Hands a guest's holdings and requests to an engine. `token` is the producer of what the guest published."""

    def __init__(self, runtime: Runtime, holdings: OpenState, token: str) -> None:
        self.runtime = runtime
        self._holdings = holdings
        self._token = token

    def restore(self) -> None:
        """Reclaim deliveries, subscribe and pull again, and go on waiting for the outcome of batches."""
        runtime, holdings = self.runtime, self._holdings
        for lease, held in holdings.held.items():
            count = runtime.submit(Reclaim(held.queue, lease, held.consumer, held.runs, held.pulled)).result
            if count <= 0 and held.deadline > runtime.clock():
                holdings.gone[lease] = -count
        for command, inbox in list(holdings.subscriptions.values()):
            try:
                runtime.wait(runtime.submit(command, inbox).ticket)
            except RemudaError as error:
                inbox.close(error)
        now = time.monotonic()
        for pull, inbox, until in list(holdings.pulls.values()):
            self._pull(msgspec.structs.replace(pull, wait=max(int((until - now) * 1e6), 1000)), inbox)
        for outcome, first, count in list(holdings.watched.values()):
            _follow(runtime.watch(first, count), outcome)

    def _pull(self, command: Pull, inbox: Inbox) -> None:
        try:
            pending = self.runtime.submit(command, inbox)
            self.runtime.wait(pending.ticket)
        except RemudaError as error:
            inbox.close(error)
        else:
            if pending.result is not None:
                inbox.put(pending.result)

    def carry_out(self, requests: Sequence[Request]) -> None:
        """Execute requests here that another process was asked for, and may have executed."""
        runtime = self.runtime
        done: list[tuple[Request, Any, Pending | None]] = []
        last = 0
        for request in requests:
            try:
                if request.query is not None:
                    done.append((request, self._answer(request), None))
                else:
                    command = request.command
                    assert command is not None
                    if type(command) is Publish:
                        command = msgspec.structs.replace(command, producer=self._token, sequence=request.number)
                    pending = runtime.submit(command, request.inbox, wait=request.waits)
                    last = max(last, pending.ticket)
                    done.append((request, pending.result, pending))
            except Exception as error:
                _fail(request, error)
        try:
            runtime.wait(last)
        except Exception as error:
            for request, _, _ in done:
                _fail(request, error)
            return
        for request, result, carried_out in done:
            command = request.command
            if type(command) is Settle and not result and request.again:
                result = self._holdings.settled_before(command, request.expected)
            if carried_out is not None:
                request.pending.held, request.pending.confirmed = carried_out.held, carried_out.confirmed
            request.resolve(result)

    def _answer(self, request: Request) -> Any:
        if request.query == "notices":
            return None
        return getattr(self.runtime, request.query or "")(*request.values)


def _fail(request: Request, error: Exception) -> None:
    gone = isinstance(error, NotFound) and type(request.command) in (RemoveQueue, RemoveExchange)
    if gone and request.again:
        request.resolve(None)
    else:
        request.fail(error)


def _follow(source: Future[None] | None, outcome: Future[None]) -> None:
    """Copy the outcome of one future to another; without a source, it is a success."""

    def copy(done: Future[None]) -> None:
        error = done.exception()
        with contextlib.suppress(InvalidStateError):
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

    if source is None:
        with contextlib.suppress(InvalidStateError):
            outcome.set_result(None)
    else:
        source.add_done_callback(copy)
