"""The host: one thread that serves all guests, many requests per read, one commit for all, many answers per write."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from remuda.broker.embedded.locks.forks import closed_after_fork
from remuda.broker.shared.directory.unforked import unforked
from remuda.broker.shared.host.commit_wait import CommitWait
from remuda.broker.shared.host.guest_connection import COMMAND_WEIGHT, Connection, Gate, Listener
from remuda.broker.shared.host.guest_requests import RequestHandler
from remuda.broker.shared.host.guest_session import GuestSession
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.nonblocking import Receiving
from remuda.broker.shared.wire.permissions import Permissions
from remuda.broker.shared.wire.poller import READ, WRITE, Ready, readiness
from remuda.broker.shared.wire.wire_frames import Hello, Welcome, WireError
from remuda.model.errors import RemudaError, StorageError
from remuda.model.operations.commands import Publish

if TYPE_CHECKING:
    from remuda.broker.embedded.runtime import Runtime

_log = logging.getLogger("remuda.host")
_GRACE: Final = 2.0
"""Seconds for which a guest that lost its connection, but may be alive, keeps what it holds."""
_CLAIMING: Final = 3.0
"""Seconds within which guests of the last host must have reclaimed their deliveries."""
_STRANGERS: Final = 10.0
"""Seconds within which a new connection must send its hello."""
_DEFERRED: Final = 0.025
_LOOK: Final = 1.0
"""Seconds between two checks that others can find the host."""


class Host:
    """Accepts guests and executes their requests on the engine of this process."""

    def __init__(self, runtime: Runtime, epoch: int = 0) -> None:
        self._runtime = runtime
        self.epoch = epoch
        self._looked = time.monotonic()
        self._readiness = readiness()
        self._wake_from, self._wake_to = socket.socketpair()
        self._wake_from.setblocking(False)
        self._wake_to.setblocking(False)
        self._readiness.register(self._wake_from, READ, None)
        self._listeners: list[Listener] = []
        self._deaf: list[Listener] = []
        """Those that cannot accept connections at present, as when this process has too many files open."""
        self._connections: set[Connection] = set()
        self._touched: set[Connection] = set()
        """Those to attend to in this turn."""
        self._stalled: set[Connection] = set()
        self._strangers: set[Connection] = set()
        """Those that have not sent their hello yet."""
        self._absent: set[GuestSession] = set()
        """Guests without a connection, which may come back."""
        self._sessions: dict[str, GuestSession] = {}
        self._awake = False
        self._posted: deque[Callable[[], None]] = deque()
        self._dirty: deque[GuestSession] = deque()
        self._eager = False
        """Whether one was added since the last turn sent what there was."""
        self._requests = RequestHandler(runtime, self._post, self._later)
        self._gathering = CommitWait()
        self._receiving = Receiving()
        self._stopping = False
        self._expected = runtime.engine.survivors
        """Guests of the last host, which may hold deliveries in flight."""
        self._claiming = (time.monotonic() + _CLAIMING) if self._expected else 0.0
        self._moves = True
        self._thread = threading.Thread(target=self._run, name="remuda-host", daemon=True)

    # From other threads

    def listen(self, listener: Listener) -> None:
        """Accept connections there, too."""
        self._post(lambda: self._add_listener(listener))

    def adopt(self, peer: socket.socket, gate: Gate) -> None:
        """Serve a connection that was accepted elsewhere."""
        peer.setblocking(False)
        self._post(lambda: self._add(Connection(peer, gate, local=True)))

    def start(self) -> None:
        closed_after_fork(self)
        self._thread.start()

    def stop(self, *, moves: bool = True) -> None:
        """Answer what is under way, and stop. With `moves`, guests go on with the next host."""
        self._moves = moves
        self._stopping = True
        self._post(lambda: None)
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(30)

    def note_attached(self, token: str) -> None:
        """Note that a guest of the last host has reclaimed what it held, or is this very process."""
        self._requests.attached.add(token)

    @property
    def guests(self) -> list[int]:
        """The process of every guest."""
        return [session.pid for session in list(self._sessions.values())]

    def disown(self) -> None:
        """In a fork: close the handles, which are the parent's."""
        for listener in self._listeners:
            listener.socket.close()
        for connection in list(self._connections):
            connection.peer.close()
        self._wake_from.close()
        self._wake_to.close()
        with contextlib.suppress(OSError):
            self._readiness.close()

    def _post(self, work: Callable[[], None]) -> None:
        self._posted.append(work)
        self._ring()

    def _wake_session(self, session: GuestSession) -> None:
        self._dirty.append(session)
        self._eager = True
        if threading.current_thread() is not self._thread:
            self._ring()

    def _ring(self) -> None:
        if not self._awake:
            self._awake = True
            with contextlib.suppress(OSError):
                self._wake_to.send(b"!")

    # The loop

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn(self._patience())
        except Exception:
            _log.exception("the host's thread failed: other processes are no longer served by this one")
        finally:
            self._shut()

    def _patience(self) -> float | None:
        if self._eager or (self._stalled and any(connection.ready for connection in self._stalled)):
            return 0
        if self._requests.defers:
            return _DEFERRED
        if self._claiming or self._absent:
            return 0.1
        return _LOOK if self._listeners or self._strangers else None

    def _turn(self, timeout: float | None) -> None:
        self._hear(self._readiness.wait(timeout))
        while self._posted:
            self._posted.popleft()()
        if self._stalled:
            for connection in [one for one in self._stalled if one.ready]:
                self._touched.add(connection)
                self._guarded(connection, self._feed)
        now = time.monotonic()
        if now - self._looked > _LOOK or self._absent or self._strangers or self._claiming:
            self._look_after(now)
        self._commit()
        self._send()

    def _hear(self, ready: Ready) -> None:
        for source, readable in ready:
            if type(source) is Connection:
                if source.closed:
                    continue
                self._touched.add(source)
                try:
                    if readable:
                        self._take(source)
                    else:
                        source.flush()
                except Exception as error:
                    self._blame(source, error)
            elif source is None:
                self._heard()
            else:
                self._accept(source)

    def _commit(self) -> None:
        """Store and answer the requests of this turn; guests that are likely to send one in a moment are waited for."""
        requests, gathering = self._requests, self._gathering
        waiting = requests.waiting
        if not waiting:
            requests.commit()
            return
        patience = gathering.patience(waiting)
        began = time.monotonic()
        if patience:
            until = began + patience
            while not gathering.complete(waiting) and began < until:
                self._hear(self._readiness.wait_shortly(until - began))
                began = time.monotonic()
            gathering.waited(waiting)
        requests.commit()
        gathering.committed(waiting, time.monotonic() - began)

    def _heard(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._wake_from.recv(4096)
        self._awake = False

    def _add_listener(self, listener: Listener) -> None:
        self._listeners.append(listener)
        self._readiness.register(listener.socket, READ, listener)

    def _accept(self, listener: Listener) -> None:
        while True:
            with unforked:
                try:
                    peer, _ = listener.socket.accept()
                except (BlockingIOError, InterruptedError):
                    return
                except OSError as error:
                    _log.error("a connection could not be accepted; trying again in a second: %s", error)
                    self._readiness.unregister(listener.socket)
                    self._deaf.append(listener)
                    return
                try:
                    peer.setblocking(False)
                    connection = listener.connect(peer)
                except (OSError, RemudaError) as error:
                    _log.warning("a connection was refused: %s", error)
                    peer.close()
                    continue
                self._add(connection)

    def _add(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._strangers.add(connection)
        connection.touched = self._touched
        self._readiness.register(connection.peer, READ, connection)

    def _guarded(self, connection: Connection, work: Callable[[Connection], None]) -> None:
        """Handle a connection: an error costs this one, never the others."""
        try:
            work(connection)
        except Exception as error:
            self._blame(connection, error)

    def _blame(self, connection: Connection, error: Exception) -> None:
        if isinstance(error, WireError):
            _log.warning("a guest's connection is closed: %s", error)
            connection.send(wire_frames.frame(wire_frames.FAILED, (0, wire_frames.error_of(error))))
            connection.closing = True
            return
        if not isinstance(error, OSError):
            _log.error("a guest's connection is closed after an error of this process", exc_info=error)
        self._lose(connection)

    def _take(self, connection: Connection) -> None:
        session = connection.session
        try:
            if session is None or connection.buffer.held or connection.stalled or connection.closing:
                received: bytes | Publish = self._receiving.receive(connection.peer)
            else:
                received = self._receiving.receive_publish(connection.peer, session.token)
        except (BlockingIOError, InterruptedError):
            return
        if type(received) is Publish:
            assert session is not None
            self._requests.publish(connection, session, received)
            connection.load += 1
        elif received:
            self._feed(connection, received)
        else:
            self._lose(connection)

    def _feed(self, connection: Connection, data: Any = b"") -> None:
        if connection.stalled:
            connection.stalled = False
            self._stalled.discard(connection)
        for kind, payload in connection.buffer.feed(data):
            if connection.closing:
                return
            if connection.session is None:
                self._greet(connection, kind, payload)
            elif kind == wire_frames.GOODBYE:
                self._end(connection.session)
                connection.session.connection = None
                connection.session = None
                connection.closing = True
            else:
                self._requests.carry_out(connection, connection.session, kind, payload)
            connection.load += COMMAND_WEIGHT if kind == wire_frames.COMMAND else 1
            if connection.full:
                connection.stalled = True
                self._stalled.add(connection)
                return

    # New guests

    def _greet(self, connection: Connection, kind: int, payload: bytes) -> None:
        if kind != wire_frames.HELLO:
            raise WireError("the first frame is not a hello; is this another program's port?")
        hello: Hello = wire_frames.decode(Hello, payload)
        try:
            if hello.version != wire_frames.VERSION:
                raise WireError(
                    f"this process speaks version {wire_frames.VERSION} of Remuda's wire, the other one "
                    f"{hello.version}; run the same version of Remuda on both sides"
                )
            if not hello.token or len(hello.token) > 64:
                raise WireError("a guest needs a token of 1 to 64 letters")
            connection.local = connection.local and not hello.far
            connection.gate.admit(connection, hello)
        except RemudaError as error:
            connection.send(wire_frames.frame(wire_frames.FAILED, (0, wire_frames.error_of(error))))
            connection.closing = True
            return
        session = self._sessions.get(hello.token)
        if session is not None and hello.grants != (session.permissions and session.permissions.grants):
            raise WireError("a guest reconnected with different permissions; open the broker again")
        if session is None:
            session = self._sessions[hello.token] = GuestSession(self._runtime, hello.token, self._wake_session)
            session.permissions = None if hello.grants is None else Permissions(hello.grants)
        else:
            if session.connection is not None:
                self._drop(session.connection)
            self._absent.discard(session)
            session.returns()
        self._runtime.visited = True
        session.pid = hello.pid
        session.local = connection.local
        connection.session, session.connection = session, connection
        self._strangers.discard(connection)
        self._dirty.append(session)
        welcome = Welcome(
            wire_frames.VERSION, os.getpid(), self.epoch, self._runtime.clock(), known_options(self._runtime.options),
            connection.local,
        )  # fmt: skip
        connection.send(wire_frames.frame(wire_frames.WELCOME, welcome))

    # After the requests of a turn

    def _later(self, connection: Connection, data: bytes) -> None:
        if connection in self._connections and not self._stopping:
            connection.send(data)
            if connection.session is not None:
                self._dirty.append(connection.session)

    def _send(self) -> None:
        self._eager = False
        dirty: set[GuestSession] = set()
        if self._dirty:
            while self._dirty:
                dirty.add(self._dirty.popleft())
            self._touched.update(one.connection for one in dirty if one.connection is not None)
        touched = list(self._touched)
        for connection in touched:
            if connection.closed:
                continue
            session = connection.session
            if dirty and session in dirty and not connection.closing:
                self._guarded(connection, _send_outgoing)
            if connection.unsent and not connection.closed:
                try:
                    connection.flush()
                except Exception as error:
                    self._blame(connection, error)
            if connection.closing and not connection.unsent:
                self._drop(connection)
                continue
            connection.load = 0
            if connection.unsent or connection.stalled or connection.slow or connection.waits_for != READ:
                self._listen_to(connection)
        self._touched.clear()

    def _listen_to(self, connection: Connection) -> None:
        """Wait for what a connection needs. Nothing is read from a guest that does not take its answers."""
        wanted = 0 if connection.full or connection.stalled else READ
        if connection.unsent:
            wanted |= WRITE
            if connection.session is not None:
                self._dirty.append(connection.session)
        if wanted == connection.waits_for or connection not in self._connections:
            return
        if not wanted:
            self._readiness.unregister(connection.peer)
        elif not connection.waits_for:
            self._readiness.register(connection.peer, wanted, connection)
        else:
            self._readiness.modify(connection.peer, wanted, connection)
        connection.waits_for = wanted

    def _look_after(self, now: float) -> None:
        if self._absent:
            for session in [one for one in self._absent if one.until is not None and one.until <= now]:
                self._end(session)
        if self._strangers:
            for connection in [one for one in self._strangers if now - one.since > _STRANGERS]:
                self._drop(connection)
        if self._listeners and now - self._looked > _LOOK:
            self._looked = now
            self._check_sockets()
        if self._claiming and (now >= self._claiming or self._expected <= self._requests.attached):
            self._claiming = 0.0
            try:
                self._runtime.release_unclaimed()
            except RemudaError as error:
                _log.error("deliveries of processes that are gone could not be put back yet: %s", error)
                self._claiming = now + 1.0

    def _check_sockets(self) -> None:
        """Replace a socket that was removed: others could not find this process."""
        deaf, self._deaf = self._deaf, []
        for listener in deaf:
            self._readiness.register(listener.socket, READ, listener)
        for at, listener in enumerate(self._listeners):
            try:
                again = listener.again()
            except (OSError, StorageError) as error:
                _log.error("the socket in the directory is gone, and other processes cannot find this one: %s", error)
                continue
            if again is not None:
                _log.warning("the socket in the directory was removed; it was created again")
                self._readiness.unregister(listener.socket)
                listener.close()
                self._listeners[at] = again
                self._readiness.register(again.socket, READ, again)

    # Leaving

    def _lose(self, connection: Connection) -> None:
        """A connection broke."""
        if connection.closed:
            return  # its guest is back over another connection
        session = connection.session
        self._drop(connection)
        if session is None or session.token not in self._sessions:
            return
        if connection.local and connection.gate.lives(session.token) is False:
            self._end(session, connection.gate)
        else:
            session.until = time.monotonic() + _GRACE
            session.gate = connection.gate
            self._absent.add(session)

    def _drop(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._gathering.forget(connection)
            self._strangers.discard(connection)
            self._stalled.discard(connection)
            connection.closed = True
            if connection.session is not None and connection.session.connection is connection:
                connection.session.connection = None
            if connection.waits_for:
                self._readiness.unregister(connection.peer)
            connection.peer.close()

    def _end(self, session: GuestSession, gate: Gate | None = None) -> None:
        gate = gate or session.gate or (session.connection.gate if session.connection is not None else None)
        self._sessions.pop(session.token, None)
        self._absent.discard(session)
        if not self._claiming:
            self._requests.attached.discard(session.token)
        session.end(None if gate is None else gate.marks(session.token))

    def _shut(self) -> None:
        """Answer what was executed, tell all guests to move, and close."""
        for listener in self._listeners:
            with contextlib.suppress(Exception):
                self._readiness.unregister(listener.socket)
            listener.close()
        with contextlib.suppress(Exception):
            self._requests.commit()
        self._requests.close()
        while self._posted:
            self._posted.popleft()()
        deadline = time.monotonic() + 2
        for session in self._sessions.values():
            session.moving = True
        for connection in list(self._connections):
            connection.send(wire_frames.frame(wire_frames.MOVING, None))
            with contextlib.suppress(OSError):
                connection.peer.settimeout(max(0.01, deadline - time.monotonic()))
                while connection.unsent:
                    connection.peer.sendall(connection.unsent.popleft())
            connection.peer.close()
            connection.closed = True
        self._connections.clear()
        if not self._moves:
            for session in list(self._sessions.values()):
                session.end(None)
        self._readiness.close()
        self._wake_from.close()
        self._wake_to.close()


def _send_outgoing(connection: Connection) -> None:
    """Send what waits for a guest, as far as it takes it."""
    session = connection.session
    while session is not None and session.outgoing(connection.send):
        connection.flush()
        if connection.unsent:
            return


def known_options(options: Any) -> dict[str, Any]:
    """A broker's options that differ from the defaults, as the wire can carry them."""
    usual = type(options)()
    differing = {
        name: getattr(options, name)
        for name in options.__struct_fields__
        if getattr(options, name) != getattr(usual, name)
    }
    plain: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(differing))
    return plain
