"""Executes guests' requests one by one and commits them together: the part of the host that knows commands, not
sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec

from remuda.broker.shared.guest.remote_log import LOG_QUERIES, answer_from_log
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.command_checks import checked, checked_query
from remuda.broker.shared.wire.permissions import READ, Permissions
from remuda.broker.shared.wire.wire_frames import WireError
from remuda.core.effects import Dispatch
from remuda.model.errors import StorageError
from remuda.model.operations.commands import CancelPull, Publish, Pull, Reclaim, Settle, Subscribe, Unsubscribe

if TYPE_CHECKING:
    from remuda.broker.embedded.pending import Pending
    from remuda.broker.embedded.runtime import Runtime
    from remuda.broker.shared.host.guest_connection import Connection
    from remuda.broker.shared.host.guest_session import GuestSession

_SLOW: Final = frozenset({"document", "notes", "known", "collect", "checkpoint"}) | LOG_QUERIES
"""Queries that may take long, and are answered by a thread of their own."""


class _Answer(msgspec.Struct, eq=False):
    """An answer that may be sent once its ticket is stored."""

    connection: Connection
    request: int
    pending: Pending
    reply: bytes | Callable[[], Any]
    """The frame, made in advance; or a function that makes the result, where messages may have to be read from the
    log."""
    ticket: int


class RequestHandler:
    """Executes guests' requests, on the host's thread; slow queries have a thread of their own.

    `post` runs a function on the host's thread, and `later` sends an answer there in a later turn.
    """

    def __init__(
        self,
        runtime: Runtime,
        post: Callable[[Callable[[], None]], None],
        later: Callable[[Connection, bytes], None],
    ) -> None:
        self._runtime = runtime
        self._post = post
        self._later = later
        self._answers: list[_Answer] = []
        self._ticket = 0
        """Once this ticket is stored, all of them are."""
        self.waiting: set[Connection] = set()
        """Connections whose requests are executed and not stored yet."""
        self._deferred: deque[_Answer] = deque()
        self._executor: ThreadPoolExecutor | None = None
        self.attached: set[str] = set()
        """Guests that have reclaimed what they held under the last host."""

    @property
    def defers(self) -> bool:
        """Whether answers wait for the next write."""
        return bool(self._deferred)

    def carry_out(self, connection: Connection, session: GuestSession, kind: int, payload: bytes) -> None:
        """Execute what a frame asks for. It is answered at once or with `commit`."""
        request: int | None = None
        try:
            if kind == wire_frames.SINGLE:
                single = wire_frames.decode(wire_frames.Single, payload)
                request = single.request
                self._publish(connection, session, request, wire_frames.single_of(single, session.token))
            elif kind == wire_frames.PUBLISH:
                published = wire_frames.decode(wire_frames.Published, payload)
                request = published.request
                self._publish(connection, session, request, wire_frames.publish_of(published, session.token))
            elif kind == wire_frames.COMMAND:
                commanded = wire_frames.decode(wire_frames.Commanded, payload)
                request = commanded.request
                self._command(connection, session, commanded)
            elif kind == wire_frames.ASK:
                asked = wire_frames.decode(wire_frames.Asked, payload)
                request = asked.request
                self._ask(connection, session, asked)
            elif kind == wire_frames.BEGUN:
                session.begun(*wire_frames.decode(tuple[int, int], payload))
            elif kind == wire_frames.ATTACH:
                self._attach(connection, session, payload)

            else:
                raise WireError(f"there is no frame of kind {kind}")
        except WireError:
            raise
        except Exception as error:
            if request is None:
                raise
            self._refuse(connection, request, error)

    def _refuse(self, connection: Connection, request: int, error: BaseException) -> None:
        """Answer with an error; not with one of a broker that gave up, since the guest asks the next host."""
        if not (isinstance(error, StorageError) and self._runtime.restoration.gave_up):
            connection.send(wire_frames.frame(wire_frames.FAILED, (request, wire_frames.error_of(error))))

    def publish(self, connection: Connection, session: GuestSession, command: Publish) -> None:
        """As `carry_out`, for one message. Its sequence is the number of the request."""
        try:
            self._publish(connection, session, command.sequence, command)
        except Exception as error:
            self._refuse(connection, command.sequence, error)

    def _keep(
        self, connection: Connection, request: int, pending: Pending, reply: bytes | Callable[[], Any] | None = None
    ) -> None:
        """Answer with the next commit: with `reply`, or with the result."""
        ticket = pending.ticket
        if ticket:
            self.waiting.add(connection)
            if ticket > self._ticket:
                self._ticket = ticket
        reply = reply or wire_frames.frame(wire_frames.RESULT, (request, pending.result))
        self._answers.append(_Answer(connection, request, pending, reply, ticket))

    def _publish(self, connection: Connection, session: GuestSession, request: int, command: Publish) -> None:
        if not connection.local:
            command = checked(command)
        if session.permissions is not None:
            session.permissions.check_command(command)
        pending = self._runtime.submit(command)
        self._keep(connection, request, pending, wire_frames.receipt_frame(request, pending.result))
        if pending.confirmed is not None:
            self._report_outcome(connection, request, pending.confirmed)

    def _report_outcome(self, connection: Connection, request: int, outcome: Future[None]) -> None:
        def report(done: Future[None]) -> None:
            failure = done.exception()
            error = None if failure is None else wire_frames.error_of(failure)
            self._post(lambda: self._later(connection, wire_frames.frame(wire_frames.CONFIRMED, (request, error))))

        outcome.add_done_callback(report)

    def _command(self, connection: Connection, session: GuestSession, commanded: wire_frames.Commanded) -> None:
        command, runtime = wire_frames.command_of(commanded), self._runtime
        if not connection.local:
            command = checked(command)
        if session.permissions is not None:
            session.permissions.check_command(command)
        if isinstance(command, Subscribe):
            ready = session.subscribe(command)
            if ready is None:
                connection.send(wire_frames.frame(wire_frames.RESULT, (commanded.request, {})))
                return
            subscribing, inbox = ready
            try:
                pending = runtime.submit(subscribing, inbox)
            except Exception:
                session.forget(command.tag)
                raise
            session.subscribed(subscribing, command.tag)
        elif isinstance(command, Pull):
            pulling, waiting = session.pull(command)
            try:
                pending = runtime.submit(pulling, waiting)
            except Exception:
                session.forget(command.tag)
                raise
            if pending.result is not None:
                session.forget(command.tag)
                session.hold(pending.result, pulled=True)
            self._keep(connection, commanded.request, pending, lambda: self._pulled(session, pending))
            return
        elif isinstance(command, CancelPull):
            waited = session.cancel_pull(command.queue, command.tag)
            connection.send(wire_frames.frame(wire_frames.RESULT, (commanded.request, waited)))
            return
        elif isinstance(command, Settle):
            self._settle(connection, session, commanded, command)
            return
        else:
            pending = runtime.submit(command)
            if isinstance(command, Unsubscribe):
                session.unsubscribed(command)
        self._keep(connection, commanded.request, pending)

    def _settle(
        self, connection: Connection, session: GuestSession, commanded: wire_frames.Commanded, command: Settle
    ) -> None:
        pending = self._runtime.submit(command, wait=commanded.waits)
        session.settled(command, pending.result)
        if pending.ticket or commanded.waits:
            self._keep(connection, commanded.request, pending)
        else:
            # It is written together with the next record, and answered then.
            settled = wire_frames.frame(wire_frames.RESULT, (commanded.request, pending.result))
            self._deferred.append(_Answer(connection, commanded.request, pending, settled, self._runtime.last_ticket))

    def _pulled(self, session: GuestSession, pending: Pending) -> wire_frames.Delivered:
        dispatch: Dispatch | None = pending.result
        if dispatch is None:
            return wire_frames.Delivered(None)
        messages = pending.held
        if messages is None:
            dispatch, messages = self._runtime.load(dispatch)
        return wire_frames.delivered(dispatch, messages)

    def _ask(self, connection: Connection, session: GuestSession, asked: wire_frames.Asked) -> None:
        shapes = wire_frames.QUERIES.get(asked.query)
        if shapes is None:
            raise WireError(f"there is no query {asked.query!r}")
        values = wire_frames.decode(shapes[0], asked.values)
        if not connection.local:
            values = checked_query(asked.query, values)
        permissions = session.permissions
        if permissions is not None:
            permissions.check_query(asked.query, values)
        if asked.query == "notices":
            session.set_notices(values[0])
            connection.send(wire_frames.frame(wire_frames.RESULT, (asked.request, None)))
        elif asked.query == "watch":
            outcome = self._runtime.watch(*values)
            connection.send(wire_frames.frame(wire_frames.RESULT, (asked.request, outcome is not None)))
            if outcome is not None:
                self._report_outcome(connection, asked.request, outcome)
        elif asked.query in _SLOW:
            self._executor = self._executor or ThreadPoolExecutor(1, "remuda-host-work")
            connection.slow += 1
            self._executor.submit(self._answer_slowly, connection, permissions, asked, values)
        else:
            result = getattr(self._runtime, asked.query)(*values)
            if permissions is not None:
                result = permissions.only_seen(asked.query, result)
            connection.send(wire_frames.frame(wire_frames.RESULT, (asked.request, result)))

    def _answer_slowly(
        self, connection: Connection, permissions: Permissions | None, asked: wire_frames.Asked, values: tuple[Any, ...]
    ) -> None:
        try:
            if asked.query in LOG_QUERIES:
                found = answer_from_log(self._runtime, asked.query, values)
            else:
                found = getattr(self._runtime, asked.query)(*values)
            if permissions is not None:
                found = permissions.only_seen(asked.query, found)
            data = wire_frames.frame(wire_frames.RESULT, (asked.request, found))
        except BaseException as error:
            data = wire_frames.frame(wire_frames.FAILED, (asked.request, wire_frames.error_of(error)))
        self._post(lambda: self._answered_slowly(connection, data))

    def _answered_slowly(self, connection: Connection, data: bytes) -> None:
        connection.slow -= 1
        self._later(connection, data)

    def _attach(self, connection: Connection, session: GuestSession, payload: bytes) -> None:
        request, claims = wire_frames.decode(tuple[int, list[wire_frames.Claim]], payload)
        found: list[int] = []
        for claim in claims:
            if session.permissions is not None and not session.permissions.may(READ, claim.queue):
                found.append(0)
                continue
            command = Reclaim(claim.queue, claim.lease, claim.consumer, claim.runs, claim.pulled)
            found.append(self._runtime.submit(command).result)
            if found[-1] > 0:
                held = Dispatch(claim.queue, claim.consumer, 0, claim.lease, claim.runs, [], 0)
                session.hold(held, pulled=claim.pulled)
        connection.send(wire_frames.frame(wire_frames.RESULT, (request, found)))
        self.attached.add(session.token)

    def commit(self) -> None:
        """Store what was executed, with one commit for all, and send the answers."""
        answers, self._answers = self._answers, []
        ticket, self._ticket = self._ticket, 0
        self.waiting = set()
        failure: BaseException | None = None
        if ticket:
            try:
                self._runtime.wait(ticket)
            except Exception as error:
                failure = error
        reached = self._runtime.reached
        while self._deferred and self._deferred[0].ticket <= reached:
            answers.append(self._deferred.popleft())
        for answer in answers:
            failed = failure if answer.ticket > reached else None
            if failed is None and type(answer.reply) is bytes:
                if not answer.connection.closed:
                    answer.connection.send(answer.reply)
            else:
                self._reply(answer, failed)

    def _reply(self, answer: _Answer, failure: BaseException | None) -> None:
        if answer.connection.closed:
            return
        if failure is None:
            assert callable(answer.reply)
            try:
                reply = wire_frames.frame(wire_frames.RESULT, (answer.request, answer.reply()))
                answer.connection.send(reply)
                return
            except Exception as error:
                failure = error
        elif isinstance(answer.pending.result, Dispatch):
            self._runtime.give_back(answer.pending.result)  # pulled, but the guest gets an error
        self._refuse(answer.connection, answer.request, failure)

    def close(self) -> None:
        """Wait for the slow queries that are being answered, and drop the others."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
