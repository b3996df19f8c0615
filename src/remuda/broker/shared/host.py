"""The host: one thread that serves all guests, many requests per read, one commit for all, many answers per write."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from remuda.broker.shared import frames
from remuda.broker.shared.border import checked
from remuda.broker.shared.frames import Hello, Welcome, WireError
from remuda.broker.shared.pages import LOG_QUESTIONS, answer_from_log
from remuda.broker.shared.session import Session
from remuda.core.effects import Dispatch
from remuda.model.commands import CancelPull, Pull, Reclaim, Settle, Subscribe, Unsubscribe
from remuda.model.errors import RemudaError

if TYPE_CHECKING:
    from remuda.broker.embedded.attempts import AttemptMarks
    from remuda.broker.embedded.pending import Pending
    from remuda.broker.embedded.runtime import Runtime

_log = logging.getLogger("remuda.host")
_READ: Final = 1 << 18
_STOP_READING: Final = 4 << 20
"""Unsent bytes at which a guest is not listened to until it has taken its answers."""
_SLOW_AT_ONCE: Final = 4
_LOAD: Final = 4000
_COMMAND_WEIGHT: Final = 40
"""A command may bring messages with it: at most a hundred are answered in one turn, and four thousand publishes."""
_GRACE: Final = 2.0
"""Seconds for which a guest that lost its connection, but may live, keeps what it holds."""
_CLAIMING: Final = 3.0
"""Seconds within which guests of the last host must have reclaimed their deliveries."""
_STRANGERS: Final = 10.0
"""Seconds within which a new connection must have said who it is."""
_DEFERRED: Final = 0.025
_SLOW: Final = frozenset({"document", "collect", "checkpoint"}) | LOG_QUESTIONS
"""Questions that may take long, and are answered by a thread of their own."""


class Gate(Protocol):
    """Who may come in."""

    def admit(self, connection: Connection, hello: Hello) -> None:
        """Raise to refuse."""

    def lives(self, token: str) -> bool | None:
        """Whether the guest's process is there; None where nobody can tell."""

    def marks(self, token: str) -> AttemptMarks | None:
        """What a guest that is gone had begun with, where that is known."""


class Connection:
    """A socket that does not block, and the bytes on their way through it."""

    def __init__(self, peer: socket.socket, gate: Gate, *, local: bool, limit: int = frames.MAX_FRAME) -> None:
        self.peer = peer
        self.gate = gate
        self.local = local
        self.session: Session | None = None
        self.buffer = frames.Buffer(limit)
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.closing = False
        """Whether it is to be closed once everything is sent."""
        self.since = time.monotonic()
        self.waits_for = selectors.EVENT_READ
        self.slow = 0
        """Questions of it that another thread works on."""
        self.load = 0
        """What it asked for in this turn, by weight."""
        self.stalled = False
        """Whether frames of it lie here that are not looked at yet."""

    @property
    def full(self) -> bool:
        """Whether it has asked for more than it has taken: then it is not listened to for now."""
        return self.unsent_bytes > _STOP_READING or self.slow >= _SLOW_AT_ONCE or self.load >= _LOAD

    def send(self, data: bytes) -> int:
        if data:
            self.unsent.append(data)
            self.unsent_bytes += len(data)
        return self.unsent_bytes

    def receive(self) -> bytes | None:
        """What has come; None when nothing has, and nothing at all at the end."""
        try:
            return self.peer.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return None

    def flush(self) -> None:
        """Send as much as the peer takes."""
        while self.unsent:
            data = self.unsent[0] if len(self.unsent) == 1 else b"".join(self.unsent)
            self.unsent.clear()
            try:
                sent = self.peer.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            if sent < len(data):
                self.unsent.appendleft(data[sent:] if sent else data)
            self.unsent_bytes -= sent
            if sent < len(data):
                return


class _Answer:
    """An answer that may go out once its ticket is kept."""

    __slots__ = ("connection", "pending", "request", "shape", "ticket")

    def __init__(
        self, connection: Connection, request: int, pending: Pending, shape: Callable[[Any], Any], ticket: int
    ) -> None:
        self.connection = connection
        self.request = request
        self.pending = pending
        self.shape = shape
        self.ticket = ticket


class Host:
    """Listens, and does for guests what faces in this process do for themselves."""

    def __init__(self, runtime: Runtime, epoch: int = 0) -> None:
        self._runtime = runtime
        self.epoch = epoch
        self._selector = selectors.DefaultSelector()
        self._wake_from, self._wake_to = socket.socketpair()
        self._wake_from.setblocking(False)
        self._wake_to.setblocking(False)
        self._selector.register(self._wake_from, selectors.EVENT_READ, None)
        self._listeners: list[Listener] = []
        self._connections: set[Connection] = set()
        self._sessions: dict[str, Session] = {}
        self._awake = False
        self._posted: deque[Callable[[], None]] = deque()
        self._dirty: set[Session] = set()
        self._answers: list[_Answer] = []
        self._deferred: deque[_Answer] = deque()
        self._executor: ThreadPoolExecutor | None = None
        self._stopping = False
        self._expected = runtime.engine.survivors
        """Guests of the last host: deliveries in flight may be theirs."""
        self._claiming = (time.monotonic() + _CLAIMING) if self._expected else 0.0
        self._attached: set[str] = set()
        self._moves = True
        self._thread = threading.Thread(target=self._run, name="remuda-host", daemon=True)

    # From other threads

    def listen(self, listener: Listener) -> None:
        """Take connections there too."""
        self._post(lambda: self._add_listener(listener))

    def adopt(self, peer: socket.socket, gate: Gate) -> None:
        """Take a connection that was made elsewhere."""
        peer.setblocking(False)
        self._post(lambda: self._add(Connection(peer, gate, local=True)))

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, moves: bool = True) -> None:
        """Answer what is under way, and say goodbye: guests go on with the next host, if this one `moves`."""
        self._moves = moves
        self._stopping = True
        self._post(lambda: None)
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(30)

    def note_attached(self, token: str) -> None:
        """A guest of the last host has reclaimed what it held, or is this very process."""
        self._attached.add(token)

    @property
    def guests(self) -> list[int]:
        """The process of every guest."""
        return [session.pid for session in list(self._sessions.values())]

    def disown(self) -> None:
        """In a fork: let go of the handles, which are the parent's."""
        for listener in self._listeners:
            listener.socket.close()
        for connection in list(self._connections):
            connection.peer.close()
        self._wake_from.close()
        self._wake_to.close()
        with contextlib.suppress(OSError):
            self._selector.close()

    def _post(self, work: Callable[[], None]) -> None:
        self._posted.append(work)
        self._ring()

    def _wake_session(self, session: Session) -> None:
        self._dirty.add(session)
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
        if any(connection.stalled and not connection.full for connection in self._connections):
            return 0
        if self._deferred:
            return _DEFERRED
        if self._claiming or any(session.until is not None for session in self._sessions.values()):
            return 0.1
        if any(connection.session is None for connection in self._connections):
            return 1.0
        return None

    def _turn(self, timeout: float | None) -> None:
        for key, mask in self._selector.select(timeout):
            if key.data is None:
                self._heard()
            elif isinstance(key.data, Listener):
                self._accept(key.data)
            elif mask & selectors.EVENT_READ:
                self._read(key.data)
            else:
                self._guarded(key.data, key.data.flush)
        while self._posted:
            self._posted.popleft()()
        for connection in [one for one in self._connections if one.stalled and not one.full]:
            self._guarded(connection, partial(self._feed, connection, b""))
        self._look_after()
        self._commit()
        self._send()

    def _heard(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._wake_from.recv(4096)
        self._awake = False

    def _add_listener(self, listener: Listener) -> None:
        self._listeners.append(listener)
        self._selector.register(listener.socket, selectors.EVENT_READ, listener)

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                peer, _ = listener.socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                _log.error("a connection could not be accepted: %s", error)
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
        self._selector.register(connection.peer, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        self._guarded(connection, lambda: self._take(connection))

    def _guarded(self, connection: Connection, work: Callable[[], None]) -> None:
        """Whatever a peer sends costs its own connection, never the others'."""
        try:
            work()
        except WireError as error:
            _log.warning("a guest's connection is closed: %s", error)
            connection.send(frames.frame(frames.FAILED, (0, frames.error_of(error))))
            connection.closing = True
        except OSError:
            self._lose(connection)
        except Exception:
            _log.exception("a guest's connection is closed after an error of this process")
            self._lose(connection)

    def _take(self, connection: Connection) -> None:
        data = connection.receive()
        if data is None:
            return
        if not data:
            self._lose(connection)
            return
        self._feed(connection, data)

    def _feed(self, connection: Connection, data: bytes) -> None:
        connection.stalled = False
        for kind, payload in connection.buffer.feed(data):
            if connection.closing:
                return
            if connection.session is None:
                self._greet(connection, kind, payload)
            else:
                self._do(connection, connection.session, kind, payload)
            connection.load += _COMMAND_WEIGHT if kind == frames.COMMAND else 1
            if connection.full:
                connection.stalled = True
                return

    # Requests

    def _greet(self, connection: Connection, kind: int, payload: bytes) -> None:
        if kind != frames.HELLO:
            raise WireError("the first frame is no hello; is this another program's port?")
        hello: Hello = frames.decode(Hello, payload)
        try:
            if hello.version != frames.VERSION:
                raise WireError(
                    f"this process speaks version {frames.VERSION} of Remuda's wire, the other one {hello.version}; "
                    "run the same version of Remuda on both sides"
                )
            if not hello.token or len(hello.token) > 64:
                raise WireError("a guest needs a token of 1 to 64 letters")
            connection.local = connection.local and not hello.far
            connection.gate.admit(connection, hello)
        except RemudaError as error:
            connection.send(frames.frame(frames.FAILED, (0, frames.error_of(error))))
            connection.closing = True
            return
        session = self._sessions.get(hello.token)
        if session is None:
            session = self._sessions[hello.token] = Session(self._runtime, hello.token, self._wake_session)
        else:
            for other in [one for one in self._connections if one.session is session]:
                self._drop(other)
            session.returns()
        self._runtime.visited = True
        session.pid = hello.pid
        session.local = connection.local
        connection.session = session
        self._dirty.add(session)
        welcome = Welcome(
            frames.VERSION, os.getpid(), self.epoch, self._runtime.clock(), known_options(self._runtime.options),
            connection.local,
        )  # fmt: skip
        connection.send(frames.frame(frames.WELCOME, welcome))

    def _do(self, connection: Connection, session: Session, kind: int, payload: bytes) -> None:
        if kind == frames.PUBLISH:
            said = frames.decode(frames.Published, payload)
            self._try(connection, said.request, lambda: self._publish(connection, session, said))
        elif kind == frames.COMMAND:
            asked = frames.decode(frames.Commanded, payload)
            self._try(connection, asked.request, lambda: self._command(connection, session, asked))
        elif kind == frames.ASK:
            question = frames.decode(frames.Asked, payload)
            self._try(connection, question.request, lambda: self._ask(connection, session, question))
        elif kind == frames.BEGUN:
            session.begun(*frames.decode(tuple[int, int], payload))
        elif kind == frames.ATTACH:
            self._attach(connection, session, payload)
        elif kind == frames.PING:
            connection.send(frames.frame(frames.PONG, None))
        elif kind == frames.GOODBYE:
            self._end(session)
            connection.session = None
            connection.closing = True
        else:
            raise WireError(f"there is no frame of kind {kind}")

    def _try(self, connection: Connection, request: int, work: Callable[[], None]) -> None:
        try:
            work()
        except WireError:
            raise
        except RemudaError as error:
            connection.send(frames.frame(frames.FAILED, (request, frames.error_of(error))))

    def _publish(self, connection: Connection, session: Session, said: frames.Published) -> None:
        command = frames.publish_of(said, session.token, trusted=connection.local)
        if not connection.local:
            command = checked(command)
        pending = self._runtime.submit(command)
        self._answers.append(_Answer(connection, said.request, pending, frames.told, pending.ticket))
        if pending.confirmed is not None:
            self._tell_fate(connection, said.request, pending.confirmed)

    def _tell_fate(self, connection: Connection, request: int, fate: Future[None]) -> None:
        def tell(done: Future[None]) -> None:
            error = done.exception()
            said = None if error is None else frames.error_of(error)
            self._post(lambda: self._later(connection, frames.frame(frames.CONFIRMED, (request, said))))

        fate.add_done_callback(tell)

    def _later(self, connection: Connection, data: bytes) -> None:
        if connection in self._connections and not self._stopping:
            connection.send(data)
            if connection.session is not None:
                self._dirty.add(connection.session)

    def _command(self, connection: Connection, session: Session, said: frames.Commanded) -> None:
        command, runtime = frames.command_of(said), self._runtime
        if not connection.local:
            command = checked(command)
        if isinstance(command, Subscribe):
            ready = session.subscribe(command)
            if ready is None:
                connection.send(frames.frame(frames.RESULT, (said.request, {})))
                return
            subscribing, inbox = ready
            try:
                pending = runtime.submit(subscribing, inbox)
            except RemudaError:
                session.forget(command.tag)
                raise
            session.subscribed(subscribing, command.tag)
        elif isinstance(command, Pull):
            pulling, waiting = session.pull(command)
            try:
                pending = runtime.submit(pulling, waiting)
            except RemudaError:
                session.forget(command.tag)
                raise
            if pending.result is not None:
                session.forget(command.tag)
                session.hold(pending.result, pulled=True)
            self._answers.append(
                _Answer(connection, said.request, pending, lambda _: self._pulled(session, pending), pending.ticket)
            )
            return
        elif isinstance(command, CancelPull):
            waited = session.cancel_pull(command.queue, command.tag)
            connection.send(frames.frame(frames.RESULT, (said.request, waited)))
            return
        elif isinstance(command, Settle):
            self._settle(connection, session, said, command)
            return
        else:
            pending = runtime.submit(command)
            if isinstance(command, Unsubscribe):
                session.unsubscribed(command)
        self._answers.append(_Answer(connection, said.request, pending, _plainly, pending.ticket))

    def _settle(self, connection: Connection, session: Session, said: frames.Commanded, command: Settle) -> None:
        pending = self._runtime.submit(command, wait=said.waits)
        if command.runs is None:
            session.settled(command.lease)
        if pending.ticket or said.waits:
            self._answers.append(_Answer(connection, said.request, pending, _plainly, pending.ticket))
        else:
            # It goes with whatever is written next, and its answer follows then.
            answer = _Answer(connection, said.request, pending, _plainly, self._runtime.last_ticket)
            self._deferred.append(answer)

    def _pulled(self, session: Session, pending: Pending) -> frames.Delivered:
        dispatch: Dispatch | None = pending.result
        if dispatch is None:
            return frames.Delivered(None)
        messages = pending.held
        if messages is None:
            dispatch, messages = self._runtime.load(dispatch)
        return frames.delivered(dispatch, messages)

    def _ask(self, connection: Connection, session: Session, said: frames.Asked) -> None:
        shapes = frames.QUESTIONS.get(said.question)
        if shapes is None:
            raise WireError(f"there is no question {said.question!r}")
        values = frames.decode(shapes[0], said.values)
        if said.question == "notices":
            session.hear(values[0])
            connection.send(frames.frame(frames.RESULT, (said.request, None)))
        elif said.question == "watch":
            fate = self._runtime.watch(*values)
            connection.send(frames.frame(frames.RESULT, (said.request, fate is not None)))
            if fate is not None:
                self._tell_fate(connection, said.request, fate)
        elif said.question in _SLOW:
            self._executor = self._executor or ThreadPoolExecutor(1, "remuda-host-work")
            connection.slow += 1
            self._executor.submit(self._answer_slowly, connection, said.request, said.question, values)
        else:
            result = getattr(self._runtime, said.question)(*values)
            connection.send(frames.frame(frames.RESULT, (said.request, result)))

    def _answer_slowly(self, connection: Connection, request: int, question: str, values: tuple[Any, ...]) -> None:
        try:
            if question in LOG_QUESTIONS:
                found = answer_from_log(self._runtime, question, values)
            else:
                found = getattr(self._runtime, question)(*values)
            data = frames.frame(frames.RESULT, (request, found))
        except BaseException as error:
            data = frames.frame(frames.FAILED, (request, frames.error_of(error)))
        self._post(lambda: self._answered_slowly(connection, data))

    def _answered_slowly(self, connection: Connection, data: bytes) -> None:
        connection.slow -= 1
        self._later(connection, data)

    def _attach(self, connection: Connection, session: Session, payload: bytes) -> None:
        request, claims = frames.decode(tuple[int, list[frames.Claim]], payload)
        found: list[int] = []
        for claim in claims:
            command = Reclaim(claim.queue, claim.lease, claim.consumer, claim.runs, claim.pulled)
            found.append(self._runtime.submit(command).result)
            held = Dispatch(claim.queue, claim.consumer, 0, claim.lease, claim.runs, [], 0)
            session.hold(held, pulled=claim.pulled)
        connection.send(frames.frame(frames.RESULT, (request, found)))
        self._attached.add(session.token)

    # After the requests of a turn

    def _commit(self) -> None:
        answers, self._answers = self._answers, []
        failure: BaseException | None = None
        if answers:
            try:
                self._runtime.wait(max(answer.ticket for answer in answers))
            except Exception as error:
                failure = error
        reached = self._runtime.reached
        while self._deferred and self._deferred[0].ticket <= reached:
            answers.append(self._deferred.popleft())
        for answer in answers:
            self._reply(answer, failure)

    def _reply(self, answer: _Answer, failure: BaseException | None) -> None:
        if answer.connection not in self._connections:
            return
        if failure is None:
            try:
                said = frames.frame(frames.RESULT, (answer.request, answer.shape(answer.pending.result)))
                answer.connection.send(said)
                return
            except RemudaError as error:
                failure = error
        elif isinstance(answer.pending.result, Dispatch):
            self._runtime.give_back(answer.pending.result)  # pulled, and not to be handed out
        answer.connection.send(frames.frame(frames.FAILED, (answer.request, frames.error_of(failure))))

    def _send(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for connection in list(self._connections):
            session = connection.session
            if session in dirty and session is not None and not connection.closing:
                while session.outgoing(connection.send):
                    self._guarded(connection, connection.flush)
                    if connection.unsent or connection not in self._connections:
                        break
            if connection.unsent:
                self._guarded(connection, connection.flush)
            if connection.closing and not connection.unsent:
                self._drop(connection)
                continue
            connection.load = 0
            self._listen_to(connection)

    def _listen_to(self, connection: Connection) -> None:
        """A guest that does not take its answers is not heard until it does."""
        wanted = 0 if connection.full or connection.stalled else selectors.EVENT_READ
        if connection.unsent:
            wanted |= selectors.EVENT_WRITE
            if connection.session is not None:
                self._dirty.add(connection.session)
        if wanted == connection.waits_for or connection not in self._connections:
            return
        if not wanted:
            self._selector.unregister(connection.peer)
        elif not connection.waits_for:
            self._selector.register(connection.peer, wanted, connection)
        else:
            self._selector.modify(connection.peer, wanted, connection)
        connection.waits_for = wanted

    def _look_after(self) -> None:
        now = time.monotonic()
        for session in [one for one in self._sessions.values() if one.until is not None and one.until <= now]:
            self._end(session)
        for connection in [one for one in self._connections if one.session is None]:
            if now - connection.since > _STRANGERS:
                self._drop(connection)
        if self._claiming and (now >= self._claiming or self._expected <= self._attached):
            self._claiming = 0.0
            try:
                self._runtime.release_unclaimed()
            except RemudaError as error:
                _log.error("deliveries of processes that are gone could not be put back yet: %s", error)
                self._claiming = now + 1.0

    # Leaving

    def _lose(self, connection: Connection) -> None:
        """A connection broke."""
        session = connection.session
        self._drop(connection)
        if session is None or session.token not in self._sessions:
            return
        if connection.local and connection.gate.lives(session.token) is False:
            self._end(session, connection.gate)
        else:
            session.until = time.monotonic() + _GRACE
            session.gate = connection.gate

    def _drop(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            if connection.waits_for:
                self._selector.unregister(connection.peer)
            connection.peer.close()

    def _end(self, session: Session, gate: Gate | None = None) -> None:
        gate = gate or session.gate or next((one.gate for one in self._connections if one.session is session), None)
        self._sessions.pop(session.token, None)
        session.end(None if gate is None else gate.marks(session.token))

    def _shut(self) -> None:
        """Answer what was done, tell everyone, and close."""
        for listener in self._listeners:
            with contextlib.suppress(Exception):
                self._selector.unregister(listener.socket)
            listener.close()
        with contextlib.suppress(Exception):
            self._commit()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            while self._posted:
                self._posted.popleft()()
        deadline = time.monotonic() + 2
        for session in self._sessions.values():
            session.moving = True
        for connection in list(self._connections):
            connection.send(frames.frame(frames.MOVING, None))
            with contextlib.suppress(OSError):
                connection.peer.settimeout(max(0.01, deadline - time.monotonic()))
                while connection.unsent:
                    connection.peer.sendall(connection.unsent.popleft())
            connection.peer.close()
        self._connections.clear()
        if not self._moves:
            for session in list(self._sessions.values()):
                session.end(None)
        self._selector.close()
        self._wake_from.close()
        self._wake_to.close()


class Listener:
    """A socket on which guests come in."""

    def __init__(self, listening: socket.socket, gate: Gate, *, local: bool, limit: int = frames.MAX_FRAME) -> None:
        self.socket = listening
        self.gate = gate
        self._local = local
        self._limit = limit
        listening.setblocking(False)

    def connect(self, peer: socket.socket) -> Connection:
        return Connection(peer, self.gate, local=self._local, limit=self._limit)

    def close(self) -> None:
        self.socket.close()


def _plainly(result: Any) -> Any:
    return result


def known_options(options: Any) -> dict[str, Any]:
    """Options of a broker that are not the usual ones, as the wire can carry them."""
    usual = type(options)()
    return {
        name: msgspec.to_builtins(getattr(options, name))
        for name in options.__struct_fields__
        if getattr(options, name) != getattr(usual, name)
    }
