"""A guest: commands go to the host's process, and what comes of them comes back.

It remembers what it asked and did not hear of, what it subscribed to and what it holds. So when its host ends it goes
on with the next one: it reclaims its deliveries, subscribes again, and asks again under the same numbers. Or it becomes
the host itself, and then the same is done in this process.
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

from remuda.broker.embedded.inside import CalledFromInside
from remuda.broker.embedded.notices import NoticeBoard
from remuda.broker.shared import frames
from remuda.broker.shared.answers import Answers
from remuda.broker.shared.frames import Carried, Welcome
from remuda.broker.shared.holdings import Holdings
from remuda.broker.shared.line import Line
from remuda.broker.shared.link import Transport, join, monotonic_micros
from remuda.broker.shared.queries import Queries
from remuda.broker.shared.reading import Reading
from remuda.broker.shared.request import Request
from remuda.broker.shared.succession import Succession
from remuda.broker.shared.tls import TlsSocket
from remuda.model.commands import CancelPull, Command, HandOver, Publish, Pull, Settle, Unsubscribe
from remuda.model.errors import BrokerClosed, HostNotResponding, RemudaError
from remuda.model.settlement import Outcome, Settlement

if TYPE_CHECKING:
    from remuda.broker.embedded.inbox import Inbox
    from remuda.broker.embedded.pending import Pending
    from remuda.broker.embedded.runtime import Runtime
    from remuda.core.effects import Dispatch
    from remuda.log.eventlog import EventLog
    from remuda.model.messages import Messages

_log = logging.getLogger("remuda.guest")
_UNREAD: Final = 500
"""Answers that nobody has waited for, after which they are read."""
PATIENCE: Final = 30.0
"""Seconds without an answer after which a call gives up."""
_CLOSED_TEXT: Final = "the broker is closed; open it again to go on. Everything accepted before is kept"


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
        self.line = Line()
        self.holdings = Holdings(self.clock)
        self._answers = Answers(self.line, self.holdings, self.notices, self.give_back)
        self._reading = Reading(self.line, self._answers, self._attentive, lambda: transport.describe(self.pid))
        self._waiting: set[int] = set()
        """The threads that wait for an answer."""
        self._last_peer: socket.socket | None = None
        self._successor: Succession | None = None
        """The engine in this very process, once it has become the host."""
        self._engine: Runtime | None = None
        """The same, from the moment on in which it is given what was under way."""
        self._late: list[Request] | None = None
        """What is asked while everything else is handed to it."""
        self._clock_offset = time.time_ns() // 1000 - monotonic_micros()
        self._unattended = False
        """Whether answers are to come where no thread waits for them: for coroutines, and over TLS."""

    # The way in

    def new_tag(self) -> int:
        return next(self.tags)

    def submit(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """Have the host carry out a command, and wait for its answer.

        Without `wait` an answer is taken for given; if it does not reach this host, it goes to the next.
        """
        # Whoever reads for others may find that one of them is gone, and gives back what was for it.
        return self._asked_once(self._submit, command, inbox, wait) if wait else self._submit(command, inbox, wait)

    def _asked_once(self, ask: Callable[..., Any], *given: Any) -> Any:
        """What interrupts a thread that waits for an answer, or reads the others', cannot wait for one itself."""
        caller = threading.get_ident()
        if caller in self._waiting:
            raise CalledFromInside
        try:
            self._waiting.add(caller)
            return ask(*given)
        finally:
            self._waiting.discard(caller)

    def _submit(self, command: Command, inbox: Inbox | None, wait: bool) -> Pending:
        request = self._publish_alone(command) if type(command) is Publish else None
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

    def _publish_alone(self, command: Publish) -> Request | None:
        """Send one message in one go, where nobody else asks anything; None, and nothing is done, where that is not
        so."""
        line = self.line
        with line.lock:
            return (
                None if self.closed or self._engine is not None else line.post_alone(command, self._answers.published)
            )

    def begin(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """The same without waiting: the result is there when `Pending.answer` is."""
        request = self._request_for(command, inbox, wait)
        if request.awaited:
            request.future = request.pending.answer = Future()
        self._send(request)
        return request.pending

    def wait(self, ticket: int) -> None:
        """Answers come when they count, so there is nothing to wait for."""

    def kept(self, ticket: int) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _request_for(self, command: Command, inbox: Inbox | None, waits: bool) -> Request:
        number = self.line.new_number()
        if type(command) is Publish:
            request = Request(number, frames.publish_frame(number, command), self._answers.published)
            request.command = command
            return request
        data = frames.command_frame(number, command, waits=waits)
        if type(command) is Pull:
            request = Request(number, data, self._answers.pulled)
        else:
            kind = frames.RESULTS[type(command)]
            request = Request(number, data, lambda raw: frames.decode(kind, raw))
        request.command, request.inbox, request.waits = command, inbox, waits
        if type(command) is Settle:
            request.expected = self.holdings.expected(command)
            if not waits:
                request.pending.result = request.expected
                request.awaited = False
        return request

    def ask(self, question: str, *values: Any) -> Any:
        return self._asked_once(self._ask, question, *values)

    def _ask(self, question: str, *values: Any) -> Any:
        number = self.line.new_number()
        kind = frames.QUESTIONS[question][1]
        asked = frames.frame(frames.ASK, frames.Asked(number, question, frames.raw(values)))
        request = Request(number, asked, lambda raw: frames.decode(kind, raw))
        request.question, request.values = question, values
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
                raise BrokerClosed(_CLOSED_TEXT)
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
        return HostNotResponding(
            f"{self._transport.describe(self.pid)} has not answered for {self._patience:.0f} seconds. What was "
            "asked may or may not have been done"
        )

    # What callers do beside commands

    def cancel_pull(self, queue: str, tag: int) -> bool:
        if self.closed:
            return True
        if tag not in self.holdings.pulls and self._late is None and self._successor is None:
            return False  # its delivery came a moment ago, or its time was up by the host's clock: the inbox tells
        cancelled: bool = self.submit(CancelPull(queue, tag)).result
        if cancelled:
            self.holdings.pulls.pop(tag, None)
        return cancelled

    def forget_pull(self, tag: int) -> None:
        self.holdings.pulls.pop(tag, None)

    def forget_inbox(self, tag: int) -> None:
        """What lay there went back with the answer to the command."""

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

        def tell(offset: int) -> None:
            with self.line.lock:
                self.line.say(frames.frame(frames.BEGUN, (lease, offset)))
            self.line.send_waiting()

        return tell

    def asks(self, dispatch: Dispatch) -> bool:
        return dispatch.lease is not None and (
            (isinstance(dispatch, Carried) and dispatch.check) or dispatch.deadline <= self.clock()
        )

    def leave(self, queue: str, consumer: str) -> None:
        with contextlib.suppress(RemudaError):
            self.begin(Unsubscribe(queue, consumer))

    def check_stalled(self) -> None:
        """The host tells with its answers."""

    def hand_over(self, dispatch: Dispatch, inbox: Inbox) -> Dispatch | None:
        if dispatch.lease is None or not self.asks(dispatch):
            return dispatch
        if not isinstance(dispatch, Carried):
            return self._engine_here().hand_over(dispatch, inbox)
        if not dispatch.hand_over and dispatch.shared and dispatch.deadline > self.clock():
            return dispatch
        try:
            runs: list[tuple[int, int]]
            runs = self.submit(HandOver(dispatch.queue, dispatch.lease, dispatch.consumer)).result
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
        """The engine in this process, which made a delivery that nobody brought here."""
        assert self._engine is not None
        return self._engine

    def reader(self) -> EventLog:
        self.flush()
        return self._transport.reader(self)

    def clock(self) -> int:
        """The host's time, as far as it is known here."""
        return monotonic_micros() + self._clock_offset

    # The connection, on one thread

    def connect(self) -> None:
        """Come to the host that there is now; raises `OSError` where there is none, and Remuda's errors where it does
        not take us."""
        self._last_peer = self._transport.connect()
        link = join(self._last_peer, self._transport.hello(self.token, self.epoch), self._patience)
        self.welcome, self.pid, self.epoch = link.welcome, link.welcome.pid, link.welcome.epoch
        self._clock_offset = link.clock_offset
        self._unattended = self._unattended or isinstance(link.peer, TlsSocket)
        self.line.attach(link, self.holdings, self._answers, hears=self.hears)

    def listen(self) -> None:
        """Be there for what the host says until the connection ends."""
        self._reading.follow()

    def _attentive(self) -> bool:
        """Whether something may come that nobody waits for."""
        holdings = self.holdings
        return bool(self._unattended or holdings.subscriptions or holdings.pulls or holdings.watched or self.hears)

    # Becoming the host

    def hand_to(self, runtime: Runtime) -> None:
        """The engine runs in this process from now on: bring everything that is under way to it."""
        succession = Succession(runtime, self.holdings, self.token)
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
        """In a fork: let go of the connection, which is the parent's."""
        self.closed = True
        self._reading.close()
        for peer in (self.line.peer, self._last_peer):
            if peer is not None:
                peer.close()

    def leave_line(self) -> None:
        """The thread that listened has ended, perhaps before it heard anything of the last host."""
        self._reading.close()
        if self._last_peer is not None:
            self._last_peer.close()

    def close(self) -> None:
        """Say goodbye. The host puts back what is not answered."""
        with self.line.lock:
            if self.closed:
                return
            self.closed = True
            self._reading.stop()
            peer, self.line.peer = self.line.peer, None
            if peer is not None:
                with contextlib.suppress(OSError):
                    peer.settimeout(2)
                    peer.sendall(frames.frame(frames.GOODBYE, None))
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)
        self.end(BrokerClosed(_CLOSED_TEXT))

    def end(self, failure: Exception) -> None:
        """Nobody will answer any more."""
        requests, self.line.requests = self.line.requests, {}
        for request in requests.values():
            request.fail(failure)
        self.holdings.end(
            None if isinstance(failure, BrokerClosed) else failure,
            BrokerClosed("the broker was closed; the message is kept and its fate is not known yet"),
        )
        self.notices.close()
