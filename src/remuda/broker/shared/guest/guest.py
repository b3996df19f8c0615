"""A guest: sends commands to the host's process and gets the results back.

It remembers its unanswered requests, its subscriptions and the deliveries it holds. When the host ends, it goes on with
the next one: it reclaims its deliveries, subscribes again, and repeats its requests under the same numbers. Or it
becomes the host itself, and does the same in this process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from remuda.broker.embedded.delivering.effect_dispatcher import CLOSED_BEFORE_OUTCOME
from remuda.broker.embedded.delivering.notices import NoticeBoard
from remuda.broker.embedded.locks.reentrancy import CalledFromInside
from remuda.broker.shared.guest.frame_reading import Reading
from remuda.broker.shared.guest.host_answers import Answers
from remuda.broker.shared.guest.host_queries import Queries
from remuda.broker.shared.guest.open_state import OpenState
from remuda.broker.shared.guest.pending_requests import PendingRequests
from remuda.broker.shared.guest.request import Request
from remuda.broker.shared.guest.takeover import Takeover
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.host_link import Transport, join, monotonic_micros
from remuda.broker.shared.wire.tls import TlsSocket
from remuda.broker.shared.wire.wire_frames import Carried, Welcome
from remuda.model.errors import BrokerClosed, HostNotResponding, RemudaError
from remuda.model.operations.commands import CancelPull, Command, HandOver, Publish, Pull, Settle, Unsubscribe
from remuda.model.settlement import Outcome, Settlement
from remuda.model.values.texts import BROKER_CLOSED

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.inbox import Inbox
    from remuda.broker.embedded.pending import Pending
    from remuda.broker.embedded.runtime import Runtime
    from remuda.core.effects import Dispatch
    from remuda.log.eventlog import EventLog
    from remuda.model.messages import Messages

_log = logging.getLogger("remuda.guest")
_UNREAD: Final = 500
"""With more unanswered requests than this, answers are read even if no caller waits."""
PATIENCE: Final = 30.0
"""Seconds without an answer after which a call gives up."""


class Guest(Queries):
    """The backend whose engine runs in another process. Safe to use from any thread."""

    remote = True

    def __init__(self, transport: Transport, tags: Iterator[int] | None = None, patience: float = PATIENCE) -> None:
        self.token = secrets.token_hex(12)
        self.pid = 0
        """The host's process."""
        self.epoch = 0
        self.welcome: Welcome | None = None
        self.closed = False
        self.notices = NoticeBoard()
        self.tags = tags or itertools.count(1)
        self._transport = transport
        self._patience = patience
        self.line = PendingRequests()
        self.holdings = OpenState(self.clock)
        self._answers = Answers(self.line, self.holdings, self.notices, self.give_back)
        self._reading = Reading(self.line, self._answers, self._attentive, lambda: transport.describe(self.pid))
        self._waiting: set[int] = set()
        """The ids of threads that wait for an answer."""
        self._last_peer: socket.socket | None = None
        self._successor: Takeover | None = None
        """What executes requests in this process, once it has become the host."""
        self._engine: Runtime | None = None
        """The engine in this process, from the moment it begins to take over what was under way."""
        self._late: list[Request] | None = None
        """Requests that come while the engine takes over the earlier ones."""
        self._clock_offset = time.time_ns() // 1000 - monotonic_micros()
        self._unattended = False
        """Whether answers come that no thread waits for: with coroutines, and over TLS."""

    # Sending requests

    def new_tag(self) -> int:
        return next(self.tags)

    def submit(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """Send a command to the host, and wait for its result.

        Without `wait`, an answer counts as done; if it does not reach this host, it goes to the next.
        """
        # Without `wait` it may be called within another call: a thread that reads for others gives back what was for
        # a consumer that is gone.
        return self._not_within(self._submit, command, inbox, wait) if wait else self._submit(command, inbox, wait)

    def _not_within(self, call: Callable[..., Any], *given: Any) -> Any:
        """Refuse a call that interrupts a thread which waits for an answer, or reads those of others: the thread could
        never go on."""
        caller = threading.get_ident()
        if caller in self._waiting:
            raise CalledFromInside
        try:
            self._waiting.add(caller)
            return call(*given)
        finally:
            self._waiting.discard(caller)

    def _submit(self, command: Command, inbox: Inbox | None, wait: bool) -> Pending:
        request = None
        if type(command) is Publish:
            line = self.line
            with line.lock:
                if not self.closed and self._engine is None:
                    request = line.post_alone(command, self._answers.published)
        if request is None:
            request = self._request_for(command, inbox, wait)
            self._send(request)
        elif self._reading.read_receipt(request):
            if request.error is not None:
                raise request.error
            return request.pending
        if request.awaited:
            if not self._reading.wait_for(request, self._patience):
                raise self.not_responding()
            if request.error is not None:
                raise request.error
        return request.pending

    def begin(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """As `submit`, without waiting: the result is valid once `Pending.answer` is done."""
        request = self._request_for(command, inbox, wait)
        if request.awaited:
            request.future = request.pending.answer = Future()
        self._send(request)
        return request.pending

    def wait(self, ticket: int) -> None:
        """Nothing to wait for: the host answers once a result is stored."""

    def kept(self, ticket: int) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _request_for(self, command: Command, inbox: Inbox | None, waits: bool) -> Request:
        number = self.line.new_number()
        if type(command) is Publish:
            request = Request(number, wire_frames.publish_frame(number, command), self._answers.published)
            request.command = command
            return request
        data = wire_frames.command_frame(number, command, waits=waits)
        if type(command) is Pull:
            request = Request(number, data, self._answers.pulled)
        else:
            kind = wire_frames.RESULTS[type(command)]
            request = Request(number, data, lambda raw: wire_frames.decode(kind, raw))
        request.command, request.inbox, request.waits = command, inbox, waits
        if type(command) is Settle:
            request.expected = self.holdings.expected(command)
            if not waits:
                request.pending.result = request.expected
                request.awaited = False
        return request

    def ask(self, query: str, *values: Any) -> Any:
        return self._not_within(self._ask, query, *values)

    def _ask(self, query: str, *values: Any) -> Any:
        number = self.line.new_number()
        kind = wire_frames.QUERIES[query][1]
        asked = wire_frames.frame(wire_frames.ASK, wire_frames.Asked(number, query, wire_frames.raw(values)))
        request = Request(number, asked, lambda raw: wire_frames.decode(kind, raw))
        request.query, request.values = query, values
        self._send(request)
        if not self._reading.wait_for(request, self._patience):
            raise self.not_responding()
        if request.error is not None:
            raise request.error
        return request.pending.result

    def _send(self, request: Request) -> None:
        line = self.line
        with line.lock:
            if self.closed:
                raise BrokerClosed(BROKER_CLOSED)
            engine = self._engine
            if engine is None:
                line.post(request)
            elif self._late is not None:
                self._late.append(request)
                return
        if engine is not None:
            assert self._successor is not None
            self._successor.carry_out([request])
            return
        if line.backlog:
            line.send_waiting()
        if request.future is not None or len(line.requests) > _UNREAD:
            self._unattended = self._unattended or request.future is not None
            self._reading.wake()

    def not_responding(self) -> HostNotResponding:
        text = (
            f"{self._transport.describe(self.pid)} has not answered for {self._patience:.0f} seconds. The command may "
            f"or may not have been carried out. {self._transport.remedy}"
        )
        return HostNotResponding(text.rstrip())

    # Pulls and deliveries

    def cancel_pull(self, queue: str, tag: int) -> bool:
        if self.closed:
            return True
        if tag not in self.holdings.pulls and self._late is None and self._successor is None:
            return False  # it was just served, or timed out by the host's clock: the inbox has the answer
        cancelled: bool = self.submit(CancelPull(queue, tag)).result
        if cancelled:
            self.holdings.pulls.pop(tag, None)
        return cancelled

    def forget_pull(self, tag: int) -> None:
        self.holdings.pulls.pop(tag, None)

    def forget_inbox(self, tag: int) -> None:
        """Nothing to do: the inbox was emptied when the host answered `Unsubscribe`."""

    def abandon_pull(self, pending: Pending, command: Pull, inbox: Inbox | None) -> None:
        def give_back(answered: Future[Any]) -> None:
            if not answered.cancelled() and answered.exception() is None and pending.result is not None:
                self.give_back(pending.result)

        if inbox is not None:
            inbox.divert(self.give_back)
            if command.tag in self.holdings.pulls:
                with contextlib.suppress(BrokerClosed):
                    cancelling = self.begin(CancelPull(command.queue, command.tag)).answer
                    assert cancelling is not None
                    cancelling.add_done_callback(lambda _: self.holdings.pulls.pop(command.tag, None))
        if pending.answer is not None:
            pending.answer.add_done_callback(give_back)

    def give_back(self, dispatch: Dispatch) -> None:
        if dispatch.lease is None:
            return
        release = Settlement(Outcome.RELEASE, "its consumer is gone", consumer=dispatch.consumer)
        with contextlib.suppress(RemudaError):
            self.submit(Settle(dispatch.queue, dispatch.lease, release), wait=False)

    def track(self, lease: int, events: int) -> Callable[[int], None]:
        mark = self._transport.begin(lease, events)
        if mark is not None:
            return mark

        def report(offset: int) -> None:
            with self.line.lock:
                self.line.send(wire_frames.frame(wire_frames.BEGUN, (lease, offset)))
            self.line.send_waiting()

        return report

    def asks(self, dispatch: Dispatch) -> bool:
        return dispatch.lease is not None and (
            (isinstance(dispatch, Carried) and dispatch.check) or dispatch.deadline <= self.clock()
        )

    def leave(self, queue: str, consumer: str) -> None:
        with contextlib.suppress(RemudaError):
            self.begin(Unsubscribe(queue, consumer))

    def check_stalled(self) -> None:
        """Nothing to do: the host's answers say so."""

    def hand_over(self, dispatch: Dispatch, inbox: Inbox) -> Dispatch | None:
        if dispatch.lease is None:
            return dispatch
        if not isinstance(dispatch, Carried):
            return self._engine_here().hand_over(dispatch, inbox)
        command = HandOver(dispatch.queue, dispatch.lease, dispatch.consumer)
        try:
            if not self.asks(dispatch):
                self.begin(command)  # so that the host knows, and gives it the time for its answer from now on
                return dispatch
            runs: list[tuple[int, int]]
            runs = self.submit(command).result
        except BaseException:
            inbox.put_back(dispatch)
            raise
        if not runs:
            self.holdings.held.pop(dispatch.lease, None)
            return None
        return dispatch if runs == dispatch.runs else dispatch.only(runs)

    def held(self, dispatch: Dispatch) -> Messages | None:
        return dispatch.messages if isinstance(dispatch, Carried) else None

    def load(self, dispatch: Dispatch) -> tuple[Dispatch, Messages]:
        if not isinstance(dispatch, Carried):
            return self._engine_here().load(dispatch)
        assert dispatch.messages is not None
        return dispatch, dispatch.messages

    def _engine_here(self) -> Runtime:
        """The engine in this process, which made a delivery that carries no messages."""
        assert self._engine is not None
        return self._engine

    def reader(self) -> EventLog:
        self.flush()
        return self._transport.reader(self)

    def clock(self) -> int:
        """The host's time, as estimated here."""
        return monotonic_micros() + self._clock_offset

    # The connection, on one thread

    def connect(self) -> None:
        """Connect to the current host; raises `OSError` if there is none, and Remuda's errors if it refuses us."""
        self._last_peer = self._transport.connect()
        link = join(self._last_peer, self._transport.hello(self.token, self.epoch), self._patience)
        self.welcome, self.pid, self.epoch = link.welcome, link.welcome.pid, link.welcome.epoch
        self._clock_offset = link.clock_offset
        self._unattended = self._unattended or isinstance(link.peer, TlsSocket)
        self.line.attach(link, self.holdings, self._answers, wants_notices=self.wants_notices)

    def listen(self) -> None:
        """Read what the host sends until the connection ends."""
        self._reading.follow()

    def _attentive(self) -> bool:
        """Whether frames may come that no caller waits for."""
        held = self.holdings
        return bool(self._unattended or held.subscriptions or held.pulls or held.watched or self.wants_notices)

    # Becoming the host

    def hand_to(self, runtime: Runtime) -> None:
        """Hand everything that is under way to the engine, which runs in this process from now on."""
        succession = Takeover(runtime, self.holdings, self.token)
        with self.line.lock:
            self._late = []
            self._engine = runtime
            requests = self.line.take_all()
        succession.restore()
        for handler in self.notices.handlers:
            runtime.on_notice(handler)
        for request in requests:
            request.again = request.sent
        while requests:
            succession.carry_out(requests)
            with self.line.lock:
                requests, self._late = self._late, []
        with self.line.lock:
            self._successor, requests, self._late = succession, self._late, None
        succession.carry_out(requests)
        self.notices.close()

    # The end

    def disown(self) -> None:
        """In a fork: close the connection, which is the parent's."""
        self.closed = True
        self._reading.close()
        for peer in (self.line.peer, self._last_peer):
            if peer is not None:
                peer.close()

    def leave_line(self) -> None:
        """Close what is left of the connection when the thread that listened ends."""
        self._reading.close()
        if self._last_peer is not None:
            self._last_peer.close()

    def close(self) -> None:
        """Say goodbye to the host, which then puts back what is not answered."""
        with self.line.lock:
            if self.closed:
                return
            self.closed = True
            self._reading.stop()
            peer, self.line.peer = self.line.peer, None
            if peer is not None:
                with contextlib.suppress(OSError):
                    peer.settimeout(2)
                    peer.sendall(wire_frames.frame(wire_frames.GOODBYE, None))
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)
        self.end(BrokerClosed(BROKER_CLOSED))

    def end(self, failure: Exception) -> None:
        """Fail everything that waits for the host."""
        requests, self.line.requests = self.line.requests, {}
        for request in requests.values():
            request.fail(failure)
        self.holdings.end(
            None if isinstance(failure, BrokerClosed) else failure,
            BrokerClosed(CLOSED_BEFORE_OUTCOME),
        )
        self.notices.close()
