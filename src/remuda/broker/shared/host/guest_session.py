"""The host's side of one guest: its subscriptions, the deliveries it holds, and what is to be sent to it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.shared.guest.open_state import Held
from remuda.broker.shared.wire import wire_frames
from remuda.core.effects import Dispatch
from remuda.model.errors import RemudaError
from remuda.model.operations.commands import Abandon, Pull, Settle, Subscribe, Unsubscribe
from remuda.model.queues.notices import Notice

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.attempts import AttemptMarks
    from remuda.broker.embedded.runtime import Runtime
    from remuda.broker.shared.host.guest_connection import Connection, Gate
    from remuda.broker.shared.wire.permissions import Permissions

_NOTICES: Final = 100_000
_LEASES: Final = 10_000
_LEFT_UNSENT: Final = 1 << 20
"""How many bytes may wait to be sent before further deliveries are loaded."""


class SessionInbox(Inbox):
    """The inbox of a guest's subscription or pull: passes deliveries straight on to the session."""

    def __init__(self, session: GuestSession, tag: int) -> None:
        super().__init__()
        self._session = session
        self.tag = tag
        """The guest's own tag."""

    def put(self, dispatch: Dispatch) -> None:
        self.reached = True
        self._session.deliver(self, dispatch)

    def close(self, failure: Exception | None = None) -> None:
        if not self.closed:
            self.closed = True
            self._session.closed(self, failure)


class GuestSession:
    """One guest, over one or more connections in turn."""

    def __init__(self, runtime: Runtime, token: str, wake: Callable[[GuestSession], None]) -> None:
        self.token = token
        self.pid = 0
        self.local = True
        self.moving = False
        """Whether the host is shutting down: the guest goes on with the next one."""
        self.until: float | None = None
        """While it has no connection: when it counts as gone."""
        self.gate: Gate | None = None
        self.connection: Connection | None = None
        """Its current connection."""
        self.permissions: Permissions | None = None
        """What it may do; None for everything."""
        self._runtime = runtime
        self._wake = wake
        self._inboxes: dict[int, tuple[int, SessionInbox]] = {}
        """By the guest's tag: the host's tag, and the inbox."""
        self._subscriptions: dict[tuple[str, str], int] = {}
        """By queue and consumer: the guest's tag."""
        self._returning: set[tuple[str, str]] = set()
        self._pulls: dict[int, str] = {}
        """Pull requests that wait, by the guest's tag, with their queue."""
        self._held: dict[int, Held] = {}
        """Deliveries that the guest holds, by lease."""
        self._many = _LEASES
        """How many there may be before those that are over are removed."""
        self._begun: dict[int, list[tuple[int, int]]] = {}
        self._due: deque[tuple[SessionInbox, Dispatch]] = deque()
        self._closings: deque[bytes] = deque()
        self._notices: deque[Notice] = deque(maxlen=_NOTICES)
        self._wants_notices = False

    # Commands of the guest

    def subscribe(self, command: Subscribe) -> tuple[Subscribe, SessionInbox] | None:
        """The command for the host's runtime, and its inbox; None if the guest is back and still subscribed."""
        place = (command.queue, command.consumer)
        known = self._subscriptions.get(place)
        if known in self._inboxes and place in self._returning:
            self._returning.discard(place)
            host_tag, inbox = self._inboxes.pop(known)
            inbox.tag = command.tag
            self._inboxes[command.tag] = (host_tag, inbox)
            self._subscriptions[place] = command.tag
            return None
        inbox = self._open(command.tag)
        return msgspec.structs.replace(command, tag=self._inboxes[command.tag][0]), inbox

    def returns(self) -> None:
        """The guest is back over a new connection, and will repeat its subscriptions."""
        self.until = None
        self._returning = set(self._subscriptions)

    def subscribed(self, command: Subscribe, tag: int) -> None:
        self._subscriptions[command.queue, command.consumer] = tag
        self._runtime.visitors.add(command.tag)

    def unsubscribed(self, command: Unsubscribe) -> None:
        place = (command.queue, command.consumer)
        if command.keep:
            for held in self._held.values():
                held.pulled |= (held.queue, held.consumer) == place
        tag = self._subscriptions.pop(place, None)
        if tag is not None:
            self.forget(tag)

    def pull(self, command: Pull) -> tuple[Pull, SessionInbox | None]:
        inbox = self._open(command.tag) if command.wait else None
        if inbox is None:
            return msgspec.structs.replace(command, tag=self._runtime.new_tag()), None
        self._pulls[command.tag] = command.queue
        return msgspec.structs.replace(command, tag=self._inboxes[command.tag][0]), inbox

    def cancel_pull(self, queue: str, tag: int) -> bool:
        self._pulls.pop(tag, None)
        known = self._inboxes.get(tag)
        if known is None:
            return False
        waited = self._runtime.cancel_pull(queue, known[0])
        if waited:
            self.forget(tag)
        return waited

    def forget(self, tag: int) -> None:
        self._pulls.pop(tag, None)
        known = self._inboxes.pop(tag, None)
        if known is not None:
            self._runtime.forget_pull(known[0])
            self._runtime.visitors.discard(known[0])
            known[1].closed = True

    def hold(self, dispatch: Dispatch, *, pulled: bool) -> None:
        """Note a delivery that is sent to the guest."""
        if dispatch.lease is None:
            return
        self._held[dispatch.lease] = Held(dispatch, pulled)
        if len(self._held) > self._many:
            self._forget_over()

    def settled(self, command: Settle, count: int) -> None:
        """Note that the guest has answered for `count` messages."""
        held = self._held.get(command.lease)
        if held is not None:
            held.left -= count
            if command.runs is None or held.left <= 0:
                self._forget(command.lease)

    def _forget_over(self) -> None:
        """Remove deliveries that ended without an answer."""
        with self._runtime.lock:
            queues = self._runtime.engine.core.queues
            over = [
                lease
                for lease, held in self._held.items()
                if held.queue not in queues or lease not in queues[held.queue].leases
            ]
        for lease in over:
            self._forget(lease)
        self._many = max(_LEASES, 2 * len(self._held))

    def _forget(self, lease: int) -> None:
        self._held.pop(lease, None)
        self._begun.pop(lease, None)

    def begun(self, lease: int, offset: int) -> None:
        """The guest has begun a message. Only guests that cannot mark it in a file report it."""
        if lease in self._held:
            self._begun.setdefault(lease, []).append((offset, 1))

    def set_notices(self, wanted: bool) -> None:
        """Start or stop sending notices to the guest."""
        if wanted and not self._wants_notices:
            self._runtime.on_notice(self._notice)
        elif self._wants_notices and not wanted:
            self._runtime.off_notice(self._notice)
        self._wants_notices = wanted

    def end(self, marks: AttemptMarks | None) -> None:
        """The guest is gone: put back what it held; only what it had begun counts as attempted."""
        self.moving = True
        runtime = self._runtime
        with contextlib.suppress(RemudaError):
            self.set_notices(False)
        begun: dict[int, list[tuple[int, int]]] = {}
        due, self._due = self._due, deque()
        for inbox, dispatch in due:
            if inbox.tag in self._pulls:
                runtime.give_back(dispatch)
            elif dispatch.lease is not None:
                begun[dispatch.lease] = []
        last = 0
        with contextlib.suppress(RemudaError):
            for tag, queue in list(self._pulls.items()):
                self.cancel_pull(queue, tag)
            for lease, held in self._held.items():
                known = self._begun.get(lease)
                if marks is not None and known is None:
                    runs = [marks.runs(lease, first, count) for first, count in held.runs]
                    if all(run is not None for run in runs):
                        known = [part for run in runs for part in run or ()]
                if held.pulled:
                    gone = Abandon(held.queue, lease, held.consumer, known)
                    last = runtime.submit_sometime(gone).ticket or last
                elif known is not None:
                    begun[lease] = known
            for queue, consumer in list(self._subscriptions):
                last = runtime.submit_sometime(Unsubscribe(queue, consumer, begun)).ticket or last
            for tag in list(self._inboxes):
                self.forget(tag)
            runtime.wait(last)

    # What is sent to the guest; called from any thread

    def deliver(self, inbox: SessionInbox, dispatch: Dispatch) -> None:
        self._due.append((inbox, dispatch))
        self._wake(self)

    def closed(self, inbox: SessionInbox, failure: Exception | None) -> None:
        if self.moving or self._inboxes.get(inbox.tag, (0, None))[1] is not inbox:
            return
        self._inboxes.pop(inbox.tag, None)
        self._pulls.pop(inbox.tag, None)
        self._subscriptions = {place: tag for place, tag in self._subscriptions.items() if tag != inbox.tag}
        error = None if failure is None else wire_frames.error_of(failure)
        self._closings.append(wire_frames.frame(wire_frames.CLOSED, (inbox.tag, error)))
        self._wake(self)

    def _notice(self, notice: Notice) -> None:
        if self.permissions is not None and not self.permissions.sees(notice.queue):
            return
        self._notices.append(notice)
        self._wake(self)

    def outgoing(self, send: Callable[[bytes], int]) -> bool:
        """Pass what waits to `send`, which returns the number of unsent bytes, while those are few. Returns whether
        more waits.

        Deliveries whose time was up while they waited here are back in their queue, and are not sent.
        """
        now = self._runtime.clock()
        while self._due:
            inbox, dispatch = self._due[0]
            over = dispatch.lease is not None and dispatch.deadline <= now and inbox.tag not in self._pulls
            if not over and send(b"") > _LEFT_UNSENT:
                return True
            self._due.popleft()
            if not over:
                send(self._delivery(inbox, dispatch))
        while self._closings:
            send(self._closings.popleft())
        if self._notices:
            notices: list[Notice] = []
            while self._notices:
                notices.append(self._notices.popleft())
            send(wire_frames.frame(wire_frames.NOTICES, notices))
        return False

    def _delivery(self, inbox: SessionInbox, dispatch: Dispatch) -> bytes:
        if self._inboxes.get(inbox.tag, (0, None))[1] is not inbox:
            self._runtime.give_back(dispatch)  # its subscription was closed while it waited here
            return b""
        pulled = self._pulls.pop(inbox.tag, None) is not None
        if pulled:
            self.forget(inbox.tag)
        try:
            dispatch, messages = self._runtime.load(dispatch)
        except RemudaError as error:
            if not pulled:
                self._end_subscription(dispatch.queue, dispatch.consumer)
            return wire_frames.frame(wire_frames.CLOSED, (inbox.tag, wire_frames.error_of(error)))
        self.hold(dispatch, pulled=pulled)
        return wire_frames.frame(
            wire_frames.DELIVERY, (inbox.tag, wire_frames.delivered(dispatch, messages, self.must_check(dispatch)))
        )

    def _end_subscription(self, queue: str, consumer: str) -> None:
        """End a subscription whose deliveries cannot be read. The guest keeps what it holds."""
        over = Unsubscribe(queue, consumer, keep=True)
        with contextlib.suppress(RemudaError):
            self._runtime.submit_sometime(over)
        self.unsubscribed(over)

    def must_check(self, dispatch: Dispatch) -> bool:
        """Whether a delivery may be over before the guest takes it."""
        queue = self._runtime.engine.core.queues.get(dispatch.queue)
        return queue is not None and (not queue.waits or bool(queue.options.message_timeout))

    def _open(self, tag: int) -> SessionInbox:
        inbox = SessionInbox(self, tag)
        self._inboxes[tag] = (self._runtime.new_tag(), inbox)
        return inbox
