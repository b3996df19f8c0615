"""A guest's line to its host: requests that were sent over it and not answered are sent again to the next host."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from remuda.broker.shared.guest.request import Request
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.nonblocking import send_at_once
from remuda.broker.shared.wire.tls import TlsSocket
from remuda.core.publishing import UNCONFIRMED
from remuda.model.operations.commands import Publish
from remuda.native import wire

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.inbox import Inbox
    from remuda.broker.shared.guest.open_state import OpenState
    from remuda.broker.shared.wire.host_link import Link
    from remuda.model.operations.commands import Pull, Subscribe


class Shapes(Protocol):
    """How answers to repeated requests become results."""

    def pulled(self, raw: Any, /) -> Any: ...
    def watched_again(self, number: int, raw: Any, /) -> None: ...


def _send_some(peer: socket.socket, data: bytes) -> int:
    try:
        return send_at_once(peer, data)
    except (BlockingIOError, InterruptedError):
        return 0


class PendingRequests:
    """The connection, while there is one, and the requests under way. `lock` is held to send."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.peer: socket.socket | None = None
        self.buffer = wire_frames.Buffer()
        """What was received and is not a complete frame yet."""
        self.requests: dict[int, Request] = {}
        self.new_number = itertools.count(1).__next__
        self.backlog: deque[Request] = deque()
        """Publishes that wait until fewer are under way: a host remembers only so many per guest."""
        self._publishing: set[int] = set()

    def post(self, request: Request) -> None:
        self.requests[request.number] = request
        if type(request.command) is Publish:
            if self.backlog or len(self._publishing) >= UNCONFIRMED:
                self.backlog.append(request)
                return
            self._publishing.add(request.number)
        request.sent = True
        self.send(request.frame)

    def post_alone(self, command: Publish, shape: Callable[[Any], Any]) -> Request | None:
        """Send one message over a line with no other request under way; else return None and do nothing."""
        peer = self.peer
        if self.requests or self.buffer.held or peer is None or wire is None or isinstance(peer, TlsSocket):
            return None
        number = self.new_number()
        request = Request(number, b"", shape)
        request.command = command
        request.sent = True
        self._publishing.add(number)
        self.requests[number] = request
        try:
            rest = wire.send_single(peer.fileno(), number, command)
        except OSError:
            self._hang_up()
            return request
        if rest is None:
            del self.requests[number]
            self._publishing.discard(number)
            return None
        if rest:
            self._send(peer, rest)
        return request

    def send(self, data: bytes) -> None:
        """Send to the host, if there is one now. What is lost here is sent again to the next."""
        if self.peer is not None:
            self._send(self.peer, data)

    def _send(self, peer: socket.socket, data: bytes) -> None:
        try:
            if isinstance(peer, TlsSocket):
                peer.sendall(data)
            elif (sent := _send_some(peer, data)) < len(data):
                peer.sendall(data[sent:])
        except OSError:
            self._hang_up()
        except BaseException:
            # Ctrl-C in the middle of a frame: what follows would be taken for the rest of it.
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self.peer is not None:
            with contextlib.suppress(OSError):
                self.peer.shutdown(socket.SHUT_RDWR)

    def published(self, number: int) -> None:
        """A publish was answered: one that waits may be sent by `catch_up`."""
        self._publishing.discard(number)

    def answered(self, request: Request) -> None:
        """A publish has its receipt."""
        self._publishing.discard(request.number)
        request.finished = True
        self.requests.pop(request.number, None)

    def send_waiting(self) -> None:
        """Send publishes that waited; may block until the line is free."""
        if self.backlogged:
            with self.lock:
                self.catch_up()

    def catch_up(self) -> None:
        """Send publishes that waited. The caller holds the lock."""
        while self.backlog and len(self._publishing) < UNCONFIRMED:
            request = self.backlog.popleft()
            self._publishing.add(request.number)
            request.sent = True
            self.send(request.frame)

    @property
    def backlogged(self) -> bool:
        """Whether publishes wait that may be sent now."""
        return bool(self.backlog) and len(self._publishing) < UNCONFIRMED

    def take_all(self) -> list[Request]:
        """Take over all unanswered requests, to execute them in this process."""
        requests = [request for request in self.requests.values() if not request.restores]
        self.requests = {}
        self.backlog.clear()
        self._publishing.clear()
        return requests

    # A new host

    def attach(self, link: Link, holdings: OpenState, shapes: Shapes, *, wants_notices: bool) -> None:
        """Repeat everything that is under way to a host that may not know of it."""
        with self.lock:
            self.buffer, self.peer = link.buffer, link.peer
            self.requests = {number: one for number, one in self.requests.items() if not one.restores}
            claims = holdings.claims()
            attached = Request(
                self.new_number(), b"", lambda raw: holdings.reclaimed(claims, wire_frames.decode(list[int], raw))
            )
            data = [wire_frames.frame(wire_frames.ATTACH, (attached.number, claims)), *self._again(holdings, shapes)]
            if wants_notices:
                asked = wire_frames.Asked(self.new_number(), "notices", wire_frames.raw((True,)))
                data.append(wire_frames.frame(wire_frames.ASK, asked))
            attached.restores = True
            self.requests[attached.number] = attached
            self.send(b"".join(data))

    def _again(self, holdings: OpenState, shapes: Shapes) -> Iterator[bytes]:
        """Frames that restore what was under way."""
        now = time.monotonic()
        unanswered = [request for request in self.requests.values() if request.sent]
        for command, inbox in list(holdings.subscriptions.values()):
            yield self._restore(command, lambda raw: None, inbox)
        for pull, inbox, until in list(holdings.pulls.values()):
            left = max(int((until - now) * 1e6), 1000)
            yield self._restore(msgspec.structs.replace(pull, wait=left), shapes.pulled, inbox)
        for number, (_, first, count) in list(holdings.watched.items()):
            watch = Request(number, b"", partial(shapes.watched_again, number))
            watch.query, watch.restores = "watch", True
            self.requests[number] = watch
            yield wire_frames.frame(
                wire_frames.ASK, wire_frames.Asked(number, "watch", wire_frames.raw((first, count)))
            )
        for request in unanswered:
            request.again = True
            yield request.frame or wire_frames.publish_frame(request.number, request.command)  # type: ignore[arg-type]

    def _restore(self, command: Subscribe | Pull, shape: Callable[[Any], Any], inbox: Inbox) -> bytes:
        request = Request(self.new_number(), b"", shape)
        request.command, request.inbox, request.restores = command, inbox, True
        self.requests[request.number] = request
        return wire_frames.command_frame(request.number, command)
