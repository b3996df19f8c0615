"""Which thread reads the host's frames: a caller that waits for an answer, or the guest's own thread.

A caller reads for itself, and for all others that wait, so that no other thread has to wake up first. If frames may
come that no caller waits for, such as deliveries, the guest's thread reads; else it only watches for the end of the
connection.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.broker.embedded.pending import Pending
from remuda.broker.shared.guest.pending_requests import PendingRequests
from remuda.broker.shared.guest.request import Request
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.nonblocking import Receiving
from remuda.broker.shared.wire.tls import TlsSocket
from remuda.broker.shared.wire.wire_frames import WireError
from remuda.native import wire

if TYPE_CHECKING:
    from remuda.broker.shared.guest.host_answers import Answers

_log = logging.getLogger("remuda.guest")
_READ: Final = 1 << 16
_TICK: Final = 1000
"""Milliseconds after which the guest's thread checks on things though nothing has come."""
_MOMENT: Final = 0.001
_WORRY: Final = 5.0
"""Seconds without an answer after which the log says so."""
_GONE: Final = getattr(select, "POLLRDHUP", select.POLLIN) | select.POLLHUP | select.POLLERR
"""Events that signal the end of the connection and nothing else; if the system has none, also incoming data."""


class Reading:
    """Reads from a line, one thread at a time. `attentive` says whether frames may come that no caller waits for."""

    def __init__(
        self, line: PendingRequests, answers: Answers, attentive: Callable[[], bool], describe: Callable[[], str]
    ) -> None:
        self._line = line
        self._answers = answers
        self._attentive = attentive
        self._describe = describe
        self._reader: object = None
        """The one whose turn it is to read, if any. Unlike a lock it says whose turn it is, so that an interrupt right
        after it was taken cannot keep the others out for good."""
        self._turn = threading.Lock()
        """Held only to change `_reader`."""
        self._receiving = Receiving()
        self._watched: tuple[socket.socket, select.poll] | None = None
        """The connection that callers read from, and the poll object to wait for it with."""
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._resting = False
        self._stopped = False
        self._heard = False
        """Whether anything has come since the guest's thread last checked."""
        self._heard_at = time.monotonic()
        self._worried = False

    # Callers

    def wait_for(self, request: Request, patience: float) -> bool:
        """Wait for the answer to a request; False if it did not come in time."""
        deadline = request.since + patience
        gate: threading.Lock | None = None
        try:
            while not request.finished:
                if self._take_turn(request):
                    self._read_for(request, deadline, min(patience * 1000, _TICK))
                    self._end_turn(request)
                    if request.finished:
                        break
                    self.wake()  # the guest's thread may have found the turn taken
                elif gate is None:
                    gate = request.new_gate()
                    continue  # the reader may have left before there was a gate to open
                gate = gate or request.new_gate()
                left = deadline - time.monotonic()
                if not request.finished and (left <= 0 or not gate.acquire(timeout=left)):
                    return request.finished
            return True
        finally:
            request.awaited = False
            if self._reader is request:
                self._end_turn(request)
            self._pass_on()

    def read_receipt(self, request: Request) -> bool:
        """Read the receipt of one message by the fast path, if it is what comes next; if not, returns False, and the
        answer must be waited for with `wait_for`."""
        line = self._line
        peer = line.peer
        if peer is None or wire is None or not self._take_turn(request):
            return False
        try:
            if line.peer is peer:  # then it is not closed before our turn ends
                received = wire.receive_receipt(peer.fileno(), request.number, _TICK)
                if type(received) is Pending:
                    self._heard = True
                    request.pending = received
                    line.answered(request)
                elif received is not None and not (received and self._take(received)):
                    _hang_up(peer)
        except OSError:
            pass
        except (WireError, msgspec.MsgspecError) as error:
            _complain(error)
            _hang_up(peer)
        except BaseException:
            _hang_up(peer)  # as in `_read_for`
            request.awaited = False
            raise
        finally:
            self._end_turn(request)
            if request.finished or not request.awaited:
                request.awaited = False
                self._pass_on()
        return request.finished

    def _take_turn(self, reader: object) -> bool:
        with self._turn:
            if self._reader is None:
                self._reader = reader
            return self._reader is reader

    def _end_turn(self, reader: object) -> None:
        with self._turn:
            if self._reader is reader:
                self._reader = None

    def _read_for(self, request: Request, deadline: float, tick: float) -> None:
        """Read until this request is answered, its time is up, or the connection has ended."""
        peer = self._line.peer
        if peer is None or isinstance(peer, TlsSocket):
            return
        try:
            watched = self._watched
            watch = watched[1] if watched is not None and watched[0] is peer else self._watch(peer)
            while not request.finished:
                # A blocking `recv` would also wake up when the host takes what was sent.
                if not watch.poll(tick):
                    if time.monotonic() >= deadline:
                        return
                    continue
                try:
                    data = self._receiving.receive(peer)
                except (BlockingIOError, InterruptedError):
                    continue
                if not data:
                    return
                if not self._take(data):
                    _hang_up(peer)
                    return
        except OSError:
            return
        except (WireError, msgspec.MsgspecError) as error:
            _complain(error)
            _hang_up(peer)
        except BaseException:
            # Ctrl-C in the middle of an answer: the request is sent again, over another connection.
            _hang_up(peer)
            raise

    def _watch(self, peer: socket.socket) -> select.poll:
        watch = select.poll()
        watch.register(peer, select.POLLIN)
        self._watched = peer, watch
        return watch

    def _pass_on(self) -> None:
        """Let another thread read, if there is anything to read."""
        line = self._line
        waiting = [one for one in list(line.requests.values()) if one.awaited] if line.requests else None
        if self._attentive() or (waiting and any(one.gate is None for one in waiting)):
            self.wake()
        elif waiting:
            waiting[0].open_gate()
        if line.backlog:
            line.send_waiting()

    def wake(self) -> None:
        """Make the guest's thread check whether it should read."""
        if self._resting and self._wake is not None:
            self._resting = False
            with contextlib.suppress(OSError):
                self._wake[1].send(b"!")

    # The guest's thread

    def follow(self) -> None:
        """Read what no caller reads, until the connection ends."""
        line, peer = self._line, self._line.peer
        assert peer is not None
        watch = select.poll()
        watch.register(peer, select.POLLIN)
        rest = select.poll()
        rest.register(peer, _GONE)
        if self._wake is None:
            self._wake = socket.socketpair()
            self._wake[0].setblocking(False)
            self._wake[1].setblocking(False)
        rest.register(self._wake[0], select.POLLIN)
        self._heard_at = time.monotonic()
        try:
            self._wait_for_turn()
            goes_on = self._take(b"")  # frames that came right behind the welcome
            while goes_on and not self._stopped:
                if self._needed() and self._take_turn(self):
                    goes_on = self._receive(peer, watch, _TICK)
                else:
                    self._end_turn(self)
                    goes_on = self._rest(peer, watch, rest)
        except OSError:
            pass
        except (WireError, msgspec.MsgspecError) as error:
            _complain(error)
        finally:
            with line.lock:
                line.peer = None
            _hang_up(peer)
            self._wait_for_turn()
            peer.close()
            self._end_turn(self)

    def _wait_for_turn(self) -> None:
        """Wait until a caller that reads has noticed the end of its connection."""
        while not self._take_turn(self):
            time.sleep(_MOMENT)
            self._free_turn()

    def _free_turn(self) -> None:
        """End the turn of a caller that was interrupted while it gave it up."""
        reader = self._reader
        if isinstance(reader, Request) and not reader.awaited:
            self._end_turn(reader)

    def _needed(self) -> bool:
        return self._attentive() or any(request.awaited for request in list(self._line.requests.values()))

    def _receive(self, peer: socket.socket, watch: select.poll, milliseconds: int) -> bool:
        if not ((isinstance(peer, TlsSocket) and peer.pending()) or watch.poll(milliseconds)):
            self._look_after()
            return True
        try:
            data = peer.recv(_READ) if isinstance(peer, TlsSocket) else self._receiving.receive(peer)
        except (BlockingIOError, InterruptedError):
            return True
        goes_on = bool(data) and self._take(data)
        if self._line.backlogged and self._line.lock.acquire(False):
            # Without waiting for the lock: its holder may be sending to a host that waits until we read.
            try:
                self._line.catch_up()
            finally:
                self._line.lock.release()
        return goes_on

    def _rest(self, peer: socket.socket, watch: select.poll, rest: select.poll) -> bool:
        """Leave reading to the callers, and watch for the end of the connection."""
        self._resting = True
        if self._needed() and self._reader is None:
            self._resting = False
            return True
        found = dict(rest.poll(_TICK))
        self._resting = False
        assert self._wake is not None
        if found.pop(self._wake[0].fileno(), None):
            with contextlib.suppress(OSError):
                self._wake[0].recv(4096)
            if not found:
                return True
        if not found:
            self._look_after()
            self._free_turn()
        if not self._take_turn(self):
            time.sleep(_MOMENT)
            return True
        try:
            return self._receive(peer, watch, 0)  # the end, or answers that no caller waits for
        finally:
            self._end_turn(self)

    def _take(self, data: bytes) -> bool:
        """Handle what was received; False if the host shuts down."""
        self._heard = True
        take = self._answers.take
        for kind, payload in self._line.buffer.feed(data):
            if kind == wire_frames.MOVING:
                return False
            take(kind, payload)
        return True

    def _look_after(self) -> None:
        """Nothing came for a second: log that, if a request has waited for long."""
        if self._heard:
            self._heard, self._heard_at, self._worried = False, time.monotonic(), False
        waiting = [request.since for request in list(self._line.requests.values())]
        quiet = time.monotonic() - max(self._heard_at, min(waiting, default=time.monotonic()))
        if waiting and quiet > _WORRY and not self._worried:
            self._worried = True
            _log.warning("%s has not answered for %.0f seconds", self._describe(), quiet)

    def stop(self) -> None:
        """Make the guest's thread end at its next turn."""
        self._stopped = True

    def close(self) -> None:
        """Release what the guest's thread used."""
        wake, self._wake = self._wake, None
        for end in wake or ():
            end.close()


def _hang_up(peer: socket.socket) -> None:
    """Shut the connection down, so that a thread that reads from it finds its end."""
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _complain(error: Exception) -> None:
    _log.error("the host sent an invalid frame; the connection is reopened: %s", error)
