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
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from remuda.broker.embedded.inbox import Inbox
from remuda.broker.embedded.notices import Handler, NoticeBoard
from remuda.broker.embedded.pending import Pending
from remuda.broker.shared import frames
from remuda.broker.shared.frames import Carried, Claim, Hello, Welcome, WireError
from remuda.broker.shared.tls import TlsSocket
from remuda.core.effects import Dispatch
from remuda.core.publishing import UNCONFIRMED
from remuda.log.recovery import RecoveryReport
from remuda.model.commands import (
    CancelPull,
    Command,
    HandOver,
    Publish,
    Pull,
    Reclaim,
    RemoveExchange,
    RemoveQueue,
    SetCredit,
    Settle,
    Subscribe,
    Unsubscribe,
)
from remuda.model.document import Document
from remuda.model.errors import BrokerClosed, HostNotResponding, NotFound, RemudaError, StorageError
from remuda.model.filters import MessageFilter
from remuda.model.messages import Messages
from remuda.model.notices import Notice
from remuda.model.results import Health, ParkedMessage, QueueInfo, Removed
from remuda.model.routing import Binding, ExchangeKind
from remuda.model.settlement import Outcome, Settlement

if TYPE_CHECKING:
    from remuda.broker.embedded.runtime import Runtime
    from remuda.log.eventlog import EventLog

_log = logging.getLogger("remuda.guest")
_READ: Final = 1 << 18
_HELD: Final = 20_000
_WORRY: Final = 5.0
"""Seconds without an answer after which the log says so."""
PATIENCE: Final = 30.0
"""Seconds without an answer after which a call gives up."""
_CLOSED_TEXT: Final = "the broker is closed; open it again to go on. Everything accepted before is kept"


class Way(Protocol):
    """How a guest comes to its host."""

    def connect(self) -> socket.socket:
        """A connection; raises `OSError` while nobody listens."""

    def hello(self, token: str, epoch: int) -> Hello: ...

    def describe(self, pid: int) -> str:
        """What to do about a host that does not answer."""

    def begin(self, lease: int, events: int) -> Callable[[int], None] | None:
        """Where what is begun can be marked without telling the host; None where it cannot."""

    def reader(self, guest: Guest) -> EventLog: ...


class _Request:
    """Something asked and not yet answered."""

    __slots__ = (
        "again", "command", "expected", "frame", "future", "inbox", "number", "pending", "question", "restores", "sent",
        "shape", "since", "values", "waits",
    )  # fmt: skip

    def __init__(self, number: int, frame: bytes, shape: Callable[[Any], Any]) -> None:
        self.number = number
        self.frame = frame
        self.shape = shape
        self.future: Future[Any] = Future()
        self.pending = Pending(None, 0)
        self.command: Command | None = None
        self.question: str | None = None
        self.values: tuple[Any, ...] = ()
        self.inbox: Inbox | None = None
        self.waits = True
        self.expected = 0
        """Of a settlement: how many messages it should settle."""
        self.sent = False
        self.again = False
        """Whether it was sent to a second host."""
        self.restores = False
        """Whether it brings a host to where the one before was, and is made anew for the next."""
        self.since = time.monotonic()


class _Held:
    """A delivery in this process's hands."""

    __slots__ = ("consumer", "deadline", "left", "pulled", "queue", "runs")

    def __init__(self, dispatch: Dispatch, pulled: bool) -> None:
        self.queue = dispatch.queue
        self.consumer = dispatch.consumer
        self.runs = dispatch.runs
        self.deadline = dispatch.deadline
        self.left = dispatch.count
        self.pulled = pulled


class Guest:
    """The backend whose engine runs in another process. Safe to use from any thread."""

    remote = True

    def __init__(self, way: Way, tags: Iterator[int] | None = None, patience: float = PATIENCE) -> None:
        self.token = secrets.token_hex(12)
        self.pid = 0
        """The host's process."""
        self.epoch = 0
        self.welcome: Welcome | None = None
        self.closed = False
        self.notices = NoticeBoard()
        self.tags = tags or itertools.count(1)
        self._way = way
        self._patience = patience
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._peer: socket.socket | None = None
        self._requests: dict[int, _Request] = {}
        self._backlog: deque[_Request] = deque()
        """Publishes that wait until fewer are under way: a host remembers only so many of each guest."""
        self._publishing = 0
        self._subscriptions: dict[int, tuple[Subscribe, Inbox]] = {}
        self._pulls: dict[int, tuple[Pull, Inbox, float]] = {}
        """Pull requests that found nothing and wait, with the time until which they do."""
        self._held: dict[int, _Held] = {}
        self._watched: dict[int, tuple[Future[None], int, int]] = {}
        """Batches whose fate is awaited, by request: first offset and count."""
        self._gone: set[int] = set()
        """Deliveries that were over when a new host was asked."""
        self._successor: Runtime | None = None
        """The engine in this very process, once it has become the host."""
        self._engine: Runtime | None = None
        """The same, from the moment on in which it is given what was under way."""
        self._late: list[_Request] | None = None
        """What is asked while everything else is handed to it."""
        self._clock_offset = 0
        self._heard_at = time.monotonic()
        self._worried = False
        self._hears = False

    # The way in

    def new_tag(self) -> int:
        return next(self.tags)

    def submit(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """Have the host carry out a command, and wait for its answer.

        Without `wait` an answer is taken for given; if it does not reach this host, it goes to the next.
        """
        request = self._request_for(command, inbox, wait)
        if wait or type(command) is not Settle:
            self._await(request)
        return request.pending

    def begin(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """The same without waiting: the result is there when `Pending.answer` is."""
        request = self._request_for(command, inbox, wait)
        if wait or type(command) is not Settle:
            request.pending.answer = request.future
        return request.pending

    def wait(self, ticket: int) -> None:
        """Answers come when they count, so there is nothing to wait for."""

    def kept(self, ticket: int) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _request_for(self, command: Command, inbox: Inbox | None, waits: bool) -> _Request:
        number = next(self._numbers)
        if type(command) is Publish:
            command = msgspec.structs.replace(command, producer=self.token, sequence=number)
            request = _Request(number, frames.publish_frame(number, command), self._published)
        else:
            data = frames.command_frame(number, command, waits=waits)
            if type(command) is Pull:
                request = _Request(number, data, self._pulled)
            else:
                kind = frames.RESULTS[type(command)]
                request = _Request(number, data, lambda raw: frames.decode(kind, raw))
        request.command, request.inbox, request.waits = command, inbox, waits
        if type(command) is Settle:
            request.expected = self._expected(command)
            if not waits:
                request.pending.result = request.expected
        self._send(request)
        return request

    def _ask(self, question: str, *values: Any) -> Any:
        number = next(self._numbers)
        kind = frames.QUESTIONS[question][1]
        asked = frames.frame(frames.ASK, frames.Asked(number, question, frames.raw(values)))
        request = _Request(number, asked, lambda raw: frames.decode(kind, raw))
        request.question, request.values = question, values
        self._send(request)
        return self._await(request)

    def _send(self, request: _Request) -> None:
        with self._lock:
            if self.closed:
                raise BrokerClosed(_CLOSED_TEXT)
            successor = self._successor
            if self._late is not None:
                self._late.append(request)
                return
            if successor is None:
                self._post(request)
        if successor is not None:
            self._carry_out([request], successor)

    def _post(self, request: _Request) -> None:
        self._requests[request.number] = request
        if type(request.command) is Publish:
            if self._publishing >= UNCONFIRMED or self._backlog:
                self._backlog.append(request)
                return
            self._publishing += 1
        request.sent = True
        self._say(request.frame)

    def _say(self, data: bytes) -> None:
        """Send to the host, if there is one now. What is lost here is said again to the next."""
        if self._peer is not None:
            try:
                self._peer.sendall(data)
            except OSError:
                with contextlib.suppress(OSError):
                    self._peer.shutdown(socket.SHUT_RDWR)

    def _await(self, request: _Request) -> Any:
        try:
            return request.future.result(self._patience)
        except TimeoutError:
            if request.future.done():
                raise
            raise self.not_responding() from None

    def not_responding(self) -> HostNotResponding:
        return HostNotResponding(
            f"{self._way.describe(self.pid)} has not answered for {self._patience:.0f} seconds. What was asked may or "
            "may not have been done"
        )

    # What callers do beside commands

    def cancel_pull(self, queue: str, tag: int) -> bool:
        if self.closed:
            return True
        if tag not in self._pulls and self._late is None and self._successor is None:
            return False  # its delivery came a moment ago, or its time was up by the host's clock: the inbox tells
        cancelled: bool = self.submit(CancelPull(queue, tag)).result
        if cancelled:
            self._pulls.pop(tag, None)
        return cancelled

    def forget_pull(self, tag: int) -> None:
        self._pulls.pop(tag, None)

    def forget_inbox(self, tag: int) -> None:
        """What lay there went back with the answer to the command."""

    def abandon_pull(self, pending: Pending, command: Pull, inbox: Inbox | None) -> None:
        def give_back(answered: Future[Any]) -> None:
            if not answered.cancelled() and answered.exception() is None and pending.result is not None:
                self.give_back(pending.result)

        if inbox is not None:
            inbox.divert(self.give_back)
            if command.tag in self._pulls:
                with contextlib.suppress(BrokerClosed):
                    cancelling = self._request_for(CancelPull(command.queue, command.tag), None, True)
                    cancelling.future.add_done_callback(lambda _: self._pulls.pop(command.tag, None))
        if pending.answer is not None:
            pending.answer.add_done_callback(give_back)

    def give_back(self, dispatch: Dispatch) -> None:
        if dispatch.lease is None:
            return
        release = Settlement(Outcome.RELEASE, "its consumer is gone", consumer=dispatch.consumer)
        with contextlib.suppress(RemudaError):
            self.submit(Settle(dispatch.queue, dispatch.lease, release), wait=False)

    def track(self, lease: int, events: int) -> Callable[[int], None]:
        mark = self._way.begin(lease, events)
        if mark is not None:
            return mark

        def tell(offset: int) -> None:
            with self._lock:
                self._say(frames.frame(frames.BEGUN, (lease, offset)))

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
        except StorageError:
            inbox.put_back(dispatch)
            raise
        if not runs:
            self._held.pop(dispatch.lease, None)
            return None
        return dispatch if runs == dispatch.runs else _without(dispatch, runs)

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

    # Questions

    def health(self) -> Health:
        try:
            health: Health = self._ask("health")
        except RemudaError as error:
            return Health(not self.closed, False, {"host": str(error)})
        return health

    def info(self, name: str) -> QueueInfo:
        found: QueueInfo = self._ask("info", name)
        return found

    def queues(self) -> list[QueueInfo]:
        found: list[QueueInfo] = self._ask("queues")
        return found

    def parked(self, name: str, chosen: MessageFilter, limit: int) -> list[ParkedMessage]:
        found: list[ParkedMessage] = self._ask("parked", name, chosen, limit)
        return found

    def waiting(self, name: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = self._ask("waiting", name)
        return found

    def exchanges(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        found: dict[str, tuple[ExchangeKind, tuple[Binding, ...]]] = self._ask("exchanges")
        return found

    def document(self, message: str | int) -> Document:
        found: Document = self._ask("document", message)
        return found

    def ask(self, question: str, *values: Any) -> Any:
        """A question by name, for those who read the log from afar."""
        return self._ask(question, *values)

    def flush(self) -> None:
        self._ask("flush")

    def checkpoint(self) -> None:
        self._ask("checkpoint")

    def collect(self) -> Removed:
        removed: Removed = self._ask("collect")
        return removed

    def reader(self) -> EventLog:
        self.flush()
        return self._way.reader(self)

    @property
    def recovery(self) -> RecoveryReport:
        """A guest opens no log, so it finds nothing to recover: its host did."""
        return RecoveryReport()

    def on_notice(self, handler: Handler) -> None:
        self.notices.add(handler)
        self._hears = True
        self._ask("notices", True)

    def off_notice(self, handler: Handler) -> None:
        self.notices.remove(handler)
        if not self.notices.wanted:
            self._hears = False
            self._ask("notices", False)

    def clock(self) -> int:
        """The host's time, as far as it is known here."""
        return time.time_ns() // 1000 + self._clock_offset

    # The connection, on one thread

    def connect(self) -> None:
        """Come to the host that there is now; raises `OSError` where there is none, and Remuda's errors where it does
        not take us."""
        peer = self._way.connect()
        try:
            with contextlib.suppress(OSError):
                peer.settimeout(self._patience)
            peer.sendall(frames.frame(frames.HELLO, self._way.hello(self.token, self.epoch)))
            buffer = frames.Buffer()
            asked_at = time.time_ns() // 1000
            waiting: list[tuple[int, bytes]] = []
            while not waiting:
                data = peer.recv(_READ)
                if not data:
                    raise ConnectionResetError("the host closed the connection")
                waiting += buffer.feed(data)
            kind, payload = waiting.pop(0)
            if kind == frames.FAILED:
                raise frames.raised(frames.decode(tuple[int, frames.Error], payload)[1])
            if kind == frames.MOVING:
                raise ConnectionResetError("the host is going")
            if kind != frames.WELCOME:
                raise WireError("the host did not say hello; is this another program's port?")
            welcome: Welcome = frames.decode(Welcome, payload)
            if welcome.version != frames.VERSION:
                raise WireError(
                    f"the host speaks version {welcome.version} of Remuda's wire, this process {frames.VERSION}; "
                    "run the same version of Remuda on both sides"
                )
            if welcome.epoch < self.epoch:
                raise ConnectionResetError("this was the host before the last one")
            peer.settimeout(None)
        except BaseException:
            peer.close()
            raise
        self.welcome, self.pid, self.epoch = welcome, welcome.pid, welcome.epoch
        self._clock_offset = welcome.now - (asked_at + time.time_ns() // 1000) // 2
        self._buffer = buffer
        self._attach(peer)

    def _attach(self, peer: socket.socket) -> None:
        """Bring everything that is under way to a host that knows nothing of it, or may not."""
        with self._lock:
            self._heard_at = time.monotonic()
            self._peer = peer
            self._requests = {number: one for number, one in self._requests.items() if not one.restores}
            claims = self._claims()
            attached = _Request(next(self._numbers), b"", lambda raw: self._reclaimed(claims, raw))
            data = [frames.frame(frames.ATTACH, (attached.number, claims)), *self._again()]
            if self._hears:
                asked = frames.Asked(next(self._numbers), "notices", frames.raw((True,)))
                data.append(frames.frame(frames.ASK, asked))
            attached.restores = True
            self._requests[attached.number] = attached
            self._say(b"".join(data))

    def _claims(self) -> list[Claim]:
        return [Claim(held.queue, lease, held.consumer, held.runs, held.pulled) for lease, held in self._held.items()]

    def _again(self) -> Iterator[bytes]:
        """Frames that restore what was under way."""
        now = time.monotonic()
        unanswered = [request for request in self._requests.values() if request.sent]
        for tag, (command, inbox) in list(self._subscriptions.items()):
            yield self._restore(command, lambda raw: None, inbox, tag)
        for tag, (pull, inbox, until) in list(self._pulls.items()):
            left = max(int((until - now) * 1e6), 1000)
            yield self._restore(msgspec.structs.replace(pull, wait=left), self._pulled, inbox, tag)
        for number, (_, first, count) in list(self._watched.items()):
            watch = _Request(number, b"", partial(self._watched_again, number))
            watch.question, watch.restores = "watch", True
            self._requests[number] = watch
            yield frames.frame(frames.ASK, frames.Asked(number, "watch", frames.raw((first, count))))
        for request in unanswered:
            request.again = True
            yield request.frame

    def _restore(self, command: Subscribe | Pull, shape: Callable[[Any], Any], inbox: Inbox, tag: int) -> bytes:
        request = _Request(next(self._numbers), b"", shape)
        request.command, request.inbox, request.restores = command, inbox, True
        self._requests[request.number] = request
        return frames.command_frame(request.number, command)

    def listen(self) -> None:
        """Take what the host says until the connection ends."""
        peer, buffer = self._peer, self._buffer
        assert peer is not None
        try:
            while not self.closed:
                data = self._receive(peer)
                if not data:
                    break
                self._heard_at, self._worried = time.monotonic(), False
                for kind, payload in buffer.feed(data):
                    if kind == frames.MOVING:
                        return
                    self._heard(kind, payload)
        except OSError:
            pass
        except (WireError, msgspec.MsgspecError) as error:
            _log.error("what the host says cannot be understood, and the connection is made anew: %s", error)
        finally:
            with self._lock:
                self._peer = None
            peer.close()

    def _receive(self, peer: socket.socket) -> bytes:
        while True:
            if (isinstance(peer, TlsSocket) and peer.pending()) or select_readable(peer, 1.0):
                return peer.recv(_READ)
            self._look_after()

    def _look_after(self) -> None:
        """Nothing came for a second: say so, if somebody has waited for long."""
        waiting = [request.since for request in list(self._requests.values())]
        quiet = time.monotonic() - max(self._heard_at, min(waiting, default=time.monotonic()))
        if waiting and quiet > _WORRY and not self._worried:
            self._worried = True
            _log.warning("%s has not answered for %.0f seconds", self._way.describe(self.pid), quiet)

    def _heard(self, kind: int, payload: bytes) -> None:
        if kind == frames.RESULT:
            said = frames.decode(frames.Answered, payload)
            request = self._requests.pop(said.request, None)
            if request is not None:
                try:
                    result = request.shape(said.result)
                except RemudaError as error:
                    self._fail(request, error)
                else:
                    self.resolve(request, result)
        elif kind == frames.FAILED:
            number, said_error = frames.decode(tuple[int, frames.Error], payload)
            failed = self._requests.pop(number, None)
            if failed is not None:
                self._fail(failed, frames.raised(said_error))
            elif number == 0:
                _log.error("the host refused this process: %s", said_error.text)
        elif kind == frames.DELIVERY:
            tag, delivered = frames.decode(tuple[int, frames.Delivered], payload)
            self._deliver(tag, delivered)
        elif kind == frames.CLOSED:
            tag, why = frames.decode(tuple[int, frames.Error | None], payload)
            self._close_inbox(tag, None if why is None else frames.raised(why))
        elif kind == frames.CONFIRMED:
            number, why = frames.decode(tuple[int, frames.Error | None], payload)
            self._confirmed(number, why)
        elif kind == frames.NOTICES:
            self.notices.post(frames.decode(list[Notice], payload))

    # Answers

    def resolve(self, request: _Request, result: Any) -> None:
        """The answer to a request is here."""
        command = request.command
        if type(command) is Publish:
            result, watched = result
            if watched:
                fate: Future[None] = Future()
                request.pending.confirmed = fate
                self._watched[request.number] = (fate, result.first, result.accepted)
            self._next_publish()
        elif type(command) is Settle:
            if not result and request.again and command.lease in self._gone:
                result = request.expected  # the host before had kept it, and only its answer was lost
            self._settled(command, result)
        elif type(command) is Subscribe and not request.restores:
            assert request.inbox is not None
            self._subscriptions[command.tag] = (command, request.inbox)
        elif type(command) is Pull:
            result = self._took(request, command, result)
        elif type(command) is SetCredit:
            self._credit(command)
        elif type(command) is Unsubscribe:
            self._unsubscribed(command)
        request.pending.result = result
        with contextlib.suppress(InvalidStateError):
            request.future.set_result(result)

    def _fail(self, request: _Request, error: Exception) -> None:
        if type(request.command) is Publish:
            self._next_publish()
        if request.restores and request.inbox is not None:
            command = request.command
            assert isinstance(command, Subscribe | Pull)
            self._close_inbox(command.tag, error)
        if request.question == "watch":
            self._confirmed(request.number, frames.error_of(error))
        if isinstance(error, NotFound) and type(request.command) in (RemoveQueue, RemoveExchange) and request.again:
            self.resolve(request, None)  # said again, and the host before had done it
            return
        if type(request.command) is Settle and not request.waits:
            _log.error("an answer for queue %s could not be kept: %s", request.command.queue, error)
        with contextlib.suppress(InvalidStateError):
            request.future.set_exception(error)

    def _next_publish(self) -> None:
        if not self._backlog:
            self._publishing -= 1
            return
        with self._lock:
            if self._backlog:
                request = self._backlog.popleft()
                request.sent = True
                self._say(request.frame)
            else:
                self._publishing -= 1

    def _published(self, raw: Any) -> Any:
        said = frames.decode(frames.Told, raw)
        receipt = frames.receipt_of(said)
        return (receipt, said.watched)

    def _pulled(self, raw: Any) -> Carried | None:
        return frames.carried(frames.decode(frames.Delivered, raw))

    def _took(self, request: _Request, command: Pull, found: Carried | None) -> Carried | None:
        if found is not None:
            self._hold(found, pulled=True)
            request.pending.held = found.messages
            if request.restores:
                self._pulls.pop(command.tag, None)
                assert request.inbox is not None
                request.inbox.put(found)
        elif command.wait and request.inbox is not None and not request.restores:
            self._pulls[command.tag] = (command, request.inbox, time.monotonic() + command.wait / 1e6)
        return found

    def _reclaimed(self, claims: list[Claim], raw: Any) -> None:
        """Deliveries of which nothing is in flight any more were answered for, or their time was up."""
        now = self.clock()
        for claim, count in zip(claims, frames.decode(list[int], raw), strict=True):
            held = self._held.get(claim.lease)
            if not count and held is not None:
                if held.deadline > now:
                    self._gone.add(claim.lease)
                self._held.pop(claim.lease, None)

    def _watched_again(self, number: int, raw: Any) -> None:
        if not frames.decode(bool, raw):
            self._confirmed(number, None)  # it ended well before anybody asked again

    def _deliver(self, tag: int, said: frames.Delivered) -> None:
        found = frames.carried(said, tag)
        if found is None:
            return
        pull = self._pulls.pop(tag, None)
        if pull is not None:
            self._hold(found, pulled=True)
            pull[1].put(found)
            return
        subscription = self._subscriptions.get(tag) or self._subscribing(tag)
        if subscription is None:
            self.give_back(found)
            return
        self._hold(found, pulled=False)
        subscription[1].put(found)

    def _subscribing(self, tag: int) -> tuple[Subscribe, Inbox] | None:
        """A delivery may overtake the answer to its own subscription."""
        for request in list(self._requests.values()):
            if type(request.command) is Subscribe and request.command.tag == tag and request.inbox is not None:
                return request.command, request.inbox
        return None

    def _hold(self, found: Carried, *, pulled: bool) -> None:
        if found.lease is not None:
            self._held[found.lease] = _Held(found, pulled)
            if len(self._held) > _HELD:
                now = self.clock()
                self._held = {lease: held for lease, held in self._held.items() if held.deadline > now}

    def _expected(self, command: Settle) -> int:
        held = self._held.get(command.lease)
        if command.runs is not None:
            return sum(count for _, count in command.runs)
        return held.left if held is not None else 0

    def _settled(self, command: Settle, count: int) -> None:
        held = self._held.get(command.lease)
        if held is not None:
            held.left -= count
            if command.runs is None or held.left <= 0:
                self._held.pop(command.lease, None)

    def _credit(self, command: SetCredit) -> None:
        for tag, (subscribed, inbox) in list(self._subscriptions.items()):
            if (subscribed.queue, subscribed.consumer) == (command.queue, command.consumer):
                self._subscriptions[tag] = (msgspec.structs.replace(subscribed, credit=command.credit), inbox)

    def _unsubscribed(self, command: Unsubscribe) -> None:
        for tag, (subscribed, inbox) in list(self._subscriptions.items()):
            if (subscribed.queue, subscribed.consumer) == (command.queue, command.consumer):
                del self._subscriptions[tag]
                if command.keep:
                    inbox.divert(self.give_back)
                inbox.close()
        if command.keep:
            for held in self._held.values():
                held.pulled |= (held.queue, held.consumer) == (command.queue, command.consumer)

    def _close_inbox(self, tag: int, failure: Exception | None) -> None:
        pull = self._pulls.pop(tag, None)
        subscription = self._subscriptions.pop(tag, None)
        inbox = pull[1] if pull is not None else subscription[1] if subscription is not None else None
        if inbox is not None:
            inbox.close(failure)

    def _confirmed(self, number: int, why: frames.Error | None) -> None:
        watched = self._watched.pop(number, None)
        if watched is not None:
            with contextlib.suppress(InvalidStateError):
                if why is None:
                    watched[0].set_result(None)
                else:
                    watched[0].set_exception(frames.raised(why))

    # Becoming the host

    def hand_to(self, runtime: Runtime) -> None:
        """The engine runs in this process from now on: bring everything that is under way to it."""
        with self._lock:
            self._late = []
            self._engine = runtime
            requests = [request for request in self._requests.values() if not request.restores]
            self._requests = {}
            self._backlog.clear()
        for lease, held in self._held.items():
            count = runtime.submit(Reclaim(held.queue, lease, held.consumer, held.runs, held.pulled)).result
            if not count and held.deadline > runtime.clock():
                self._gone.add(lease)
        for command, inbox in list(self._subscriptions.values()):
            try:
                runtime.wait(runtime.submit(command, inbox).ticket)
            except RemudaError as error:
                inbox.close(error)
        now = time.monotonic()
        for pull, inbox, until in list(self._pulls.values()):
            self._pull_here(runtime, msgspec.structs.replace(pull, wait=max(int((until - now) * 1e6), 1000)), inbox)
        for fate, first, count in list(self._watched.values()):
            follow(runtime.watch(first, count), fate)
        for handler in self.notices.handlers:
            runtime.on_notice(handler)
        for request in requests:
            request.again = request.sent
        while requests:
            self._carry_out(requests, runtime)
            with self._lock:
                requests, self._late = self._late, []
        with self._lock:
            self._successor, requests, self._late = runtime, self._late, None
        self._carry_out(requests, runtime)
        self.notices.close()

    def _pull_here(self, runtime: Runtime, command: Pull, inbox: Inbox) -> None:
        try:
            pending = runtime.submit(command, inbox)
            runtime.wait(pending.ticket)
        except RemudaError as error:
            inbox.close(error)
        else:
            if pending.result is not None:
                inbox.put(pending.result)

    def _carry_out(self, requests: list[_Request], runtime: Runtime) -> None:
        """Do here what another process was asked to do, and had perhaps done."""
        done: list[tuple[_Request, Any, Pending | None]] = []
        last = 0
        for request in requests:
            try:
                if request.question is not None:
                    done.append((request, self._answer_here(request, runtime), None))
                else:
                    assert request.command is not None
                    pending = runtime.submit(request.command, request.inbox, wait=request.waits)
                    last = max(last, pending.ticket)
                    done.append((request, pending.result, pending))
            except Exception as error:
                self._fail_here(request, error)
        try:
            runtime.wait(last)
        except Exception as error:
            for request, _, _ in done:
                self._fail_here(request, error)
            return
        for request, result, carried_out in done:
            command = request.command
            if type(command) is Settle and not result and request.again and command.lease in self._gone:
                result = request.expected
            if carried_out is not None:
                request.pending.held, request.pending.confirmed = carried_out.held, carried_out.confirmed
            request.pending.result = result
            with contextlib.suppress(InvalidStateError):
                request.future.set_result(result)

    def _answer_here(self, request: _Request, runtime: Runtime) -> Any:
        if request.question == "notices":
            return None
        return getattr(runtime, request.question or "")(*request.values)

    def _fail_here(self, request: _Request, error: Exception) -> None:
        gone = isinstance(error, NotFound) and type(request.command) in (RemoveQueue, RemoveExchange)
        with contextlib.suppress(InvalidStateError):
            if gone and request.again:
                request.future.set_result(None)
            else:
                request.future.set_exception(error)

    # The end

    def disown(self) -> None:
        """In a fork: let go of the connection, which is the parent's."""
        self.closed = True
        if self._peer is not None:
            self._peer.close()

    def close(self) -> None:
        """Say goodbye. The host puts back what is not answered."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            peer, self._peer = self._peer, None
            if peer is not None:
                with contextlib.suppress(OSError):
                    peer.settimeout(2)
                    peer.sendall(frames.frame(frames.GOODBYE, None))
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)
        self.end(BrokerClosed(_CLOSED_TEXT))

    def end(self, failure: Exception) -> None:
        """Nobody will answer any more."""
        requests, self._requests = self._requests, {}
        for request in requests.values():
            with contextlib.suppress(InvalidStateError):
                request.future.set_exception(failure)
        watched, self._watched = self._watched, {}
        for fate, _, _ in watched.values():
            with contextlib.suppress(InvalidStateError):
                fate.set_exception(
                    BrokerClosed("the broker was closed; the message is kept and its fate is not known yet")
                )
        quiet = isinstance(failure, BrokerClosed)
        for _, inbox in list(self._subscriptions.values()):
            inbox.close(None if quiet else failure)
        for _, inbox, _ in list(self._pulls.values()):
            inbox.close(None if quiet else failure)
        self.notices.close()


def follow(source: Future[None] | None, fate: Future[None]) -> None:
    """Give one future the outcome of another; without one, all is well."""

    def copy(done: Future[None]) -> None:
        error = done.exception()
        with contextlib.suppress(InvalidStateError):
            if error is None:
                fate.set_result(None)
            else:
                fate.set_exception(error)

    if source is None:
        with contextlib.suppress(InvalidStateError):
            fate.set_result(None)
    else:
        source.add_done_callback(copy)


def select_readable(peer: socket.socket, seconds: float) -> bool:
    """Whether something came within the time. Not `select`, which cannot watch handles beyond 1024."""
    poll = select.poll()
    poll.register(peer, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(seconds * 1000))


def _without(dispatch: Carried, found: list[tuple[int, int]]) -> Carried:
    """The delivery of only those runs that may still be handed over."""
    wanted = {offset for first, count in found for offset in range(first, first + count)}
    rows, runs, attempts, redelivered = [], [], [], []
    row = 0
    for at, (first, count) in enumerate(dispatch.runs):
        for offset in range(first, first + count):
            if offset in wanted:
                rows.append(row)
                runs.append((offset, 1))
                attempts.append(dispatch.attempts[at])
                redelivered.append(bool(dispatch.redelivered) and dispatch.redelivered[at])
            row += 1
    assert dispatch.messages is not None
    return msgspec.structs.replace(
        dispatch,
        runs=runs,
        attempts=attempts,
        redelivered=tuple(redelivered),
        messages=dispatch.messages.take(rows),
    )
