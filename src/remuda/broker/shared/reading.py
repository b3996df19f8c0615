"""Who reads what the host says: the thread that waits for an answer, or the guest's own.

A caller reads for itself, and for all who wait beside it, so that no other thread has to wake up first. Where
something may come that nobody waits for, as deliveries do, the guest's thread reads; else it only looks whether the
host is there.
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
from remuda.broker.shared import frames
from remuda.broker.shared.frames import WireError
from remuda.broker.shared.line import Line
from remuda.broker.shared.quick import Receiving
from remuda.broker.shared.request import Request
from remuda.broker.shared.tls import TlsSocket
from remuda.native import wire

if TYPE_CHECKING:
    from remuda.broker.shared.answers import Answers

_log = logging.getLogger("remuda.guest")
_READ: Final = 1 << 16
_TICK: Final = 1000
"""Milliseconds after which the guest's thread looks around though nothing has come."""
_MOMENT: Final = 0.001
_WORRY: Final = 5.0
"""Seconds without an answer after which the log says so."""
_GONE: Final = getattr(select, "POLLRDHUP", select.POLLIN) | select.POLLHUP | select.POLLERR
"""What tells of the host's end, and nothing else; where the system has no such sign, anything that comes."""


class Reading:
    """Reads from a line, one thread at a time. `attentive` tells whether something may come that nobody waits for."""

    def __init__(
        self, line: Line, answers: Answers, attentive: Callable[[], bool], describe: Callable[[], str]
    ) -> None:
        self._line = line
        self._answers = answers
        self._attentive = attentive
        self._describe = describe
        self._reader: object = None
        """Whoever reads, if anybody does. Unlike a lock it tells whose turn it is, so that an interrupt which comes
        between taking it and the next line leaves nobody out for good."""
        self._turn = threading.Lock()
        """Held to change that, and no longer."""
        self._receiving = Receiving()
        self._watched: tuple[socket.socket, select.poll] | None = None
        """The connection that callers read from, and how they wait for it."""
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._resting = False
        self._stopped = False
        self._heard = False
        """Whether anything has come since the guest's thread last looked around."""
        self._heard_at = time.monotonic()
        self._worried = False

    # A caller

    def wait_for(self, request: Request, patience: float) -> bool:
        """Whether the answer came in time."""
        deadline = request.since + patience
        gate: threading.Lock | None = None
        try:
            while not request.finished:
                if self._take_turn(request):
                    self._read_for(request, deadline, min(patience * 1000, _TICK))
                    self._end_turn(request)
                    if request.finished:
                        break
                    self.wake()  # it may have found the turn taken
                elif gate is None:
                    gate = request.new_gate()
                    continue  # whoever read may have left before there was a gate to open
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
        """Read the answer to one message in one go, if it is what comes next; else, False, it is to be waited for like
        any other."""
        line = self._line
        peer = line.peer
        if peer is None or wire is None or not self._take_turn(request):
            return False
        try:
            if line.peer is peer:  # which is not closed then before our turn ends
                said = wire.receive_receipt(peer.fileno(), request.number, _TICK)
                if type(said) is Pending:
                    self._heard = True
                    request.pending = said
                    line.answered(request)
                elif said is not None and not (said and self._take(said)):
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
                # In `recv` it would be woken twice: also when the host takes what was sent.
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
            # Ctrl-C in the middle of an answer: it is asked for again, over another connection.
            _hang_up(peer)
            raise

    def _watch(self, peer: socket.socket) -> select.poll:
        watch = select.poll()
        watch.register(peer, select.POLLIN)
        self._watched = peer, watch
        return watch

    def _pass_on(self) -> None:
        """Somebody else reads from here on, if there is anything to read."""
        line = self._line
        waiting = [one for one in list(line.requests.values()) if one.awaited] if line.requests else None
        if self._attentive() or (waiting and any(one.gate is None for one in waiting)):
            self.wake()
        elif waiting:
            waiting[0].open_gate()
        if line.backlog:
            line.send_waiting()

    def wake(self) -> None:
        """Have the guest's thread look whether it should read."""
        if self._resting and self._wake is not None:
            self._resting = False
            with contextlib.suppress(OSError):
                self._wake[1].send(b"!")

    # The guest's thread

    def follow(self) -> None:
        """Take what the host says, where nobody else does, until the connection ends."""
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
            goes_on = self._take(b"")  # what came right behind the welcome
            while goes_on and not self._stopped:
                if self._needed() and self._take_turn(self):
                    goes_on = self._hear(peer, watch, _TICK)
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
        """Whoever reads ends soon: its connection has."""
        while not self._take_turn(self):
            time.sleep(_MOMENT)
            self._free_turn()

    def _free_turn(self) -> None:
        """One who was interrupted while it gave up its turn may still have it."""
        reader = self._reader
        if isinstance(reader, Request) and not reader.awaited:
            self._end_turn(reader)

    def _needed(self) -> bool:
        return self._attentive() or any(request.awaited for request in list(self._line.requests.values()))

    def _hear(self, peer: socket.socket, watch: select.poll, milliseconds: int) -> bool:
        if not ((isinstance(peer, TlsSocket) and peer.pending()) or watch.poll(milliseconds)):
            self._look_after()
            return True
        try:
            data = peer.recv(_READ) if isinstance(peer, TlsSocket) else self._receiving.receive(peer)
        except (BlockingIOError, InterruptedError):
            return True
        goes_on = bool(data) and self._take(data)
        if self._line.backlogged and self._line.lock.acquire(False):
            # Not to be waited for: who sends may be waiting for the host, and that for us to read.
            try:
                self._line.catch_up()
            finally:
                self._line.lock.release()
        return goes_on

    def _rest(self, peer: socket.socket, watch: select.poll, rest: select.poll) -> bool:
        """Others read, if anything comes at all."""
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
            return self._hear(peer, watch, 0)  # the end, or answers that nobody waits for
        finally:
            self._end_turn(self)

    def _take(self, data: bytes) -> bool:
        """What came; False when the host goes."""
        self._heard = True
        take = self._answers.take
        for kind, payload in self._line.buffer.feed(data):
            if kind == frames.MOVING:
                return False
            take(kind, payload)
        return True

    def _look_after(self) -> None:
        """Nothing came for a second: say so, if somebody has waited for long."""
        if self._heard:
            self._heard, self._heard_at, self._worried = False, time.monotonic(), False
        waiting = [request.since for request in list(self._line.requests.values())]
        quiet = time.monotonic() - max(self._heard_at, min(waiting, default=time.monotonic()))
        if waiting and quiet > _WORRY and not self._worried:
            self._worried = True
            _log.warning("%s has not answered for %.0f seconds", self._describe(), quiet)

    def stop(self) -> None:
        """Nothing more is read than what comes within a moment."""
        self._stopped = True

    def close(self) -> None:
        """The guest's thread follows no host any more."""
        wake, self._wake = self._wake, None
        for end in wake or ():
            end.close()


def _hang_up(peer: socket.socket) -> None:
    """Whoever reads from it finds its end."""
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _complain(error: Exception) -> None:
    _log.error("what the host says cannot be understood, and the connection is reopened: %s", error)
