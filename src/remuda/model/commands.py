"""A broker's commands, as values: the API builds them, the wire carries them, the core executes them.

They are checked where they are built (`remuda.broker.checks`); the core relies on their types.
"""

from __future__ import annotations

from typing import Any

import msgspec

from remuda.model.filters import MessageFilter
from remuda.model.messages import Messages
from remuda.model.options import Status
from remuda.model.records import SpoolTaken
from remuda.model.routing import Binding, ExchangeKind
from remuda.model.settlement import Settlement
from remuda.native import columns

NamedOptions = dict[str, Any] | None
"""Queue options by name, as `read_options` gives them."""


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Store messages in the queues of their topics, in `queue` alone, or in those behind `exchange`.

    With `unbound`, they go only to channels subscribed to their topics; those without a channel go to that queue.
    """

    messages: Messages
    queue: str | None = None
    unbound: str | None = None
    exchange: str | None = None
    options: NamedOptions = None
    spooled: SpoolTaken | None = None
    producer: str | None = None
    sequence: int = 0


def _is_plain(command: Publish) -> bool:
    messages = command.messages
    return (
        len(messages.bodies) == 1
        and messages.ids is None
        and messages.due is None
        and messages.expires is None
        and (messages.object is None or messages.key is None or command.queue is not None)
        and type(messages.priority) is int
        and type(messages.topics) is tuple
        and type(messages.name) is str
        and command.options is None
        and command.spooled is None
        and command.exchange is None
    )


is_plain = _is_plain
"""Whether a command publishes one message without any special option."""
if columns is not None:
    columns.set_publish(Publish)
    is_plain = columns.is_plain


class SkipSpooled(msgspec.Struct, frozen=True):
    """Count rows of the spool as taken though they are not valid messages, so that they are not read again."""

    spooled: SpoolTaken


class Subscribe(msgspec.Struct, frozen=True):
    """Send a consumer a queue's messages as they come: up to `batch` per delivery, and `credit` unanswered ones.

    Deliveries to it carry its `tag`. Consumers of one `group` share one credit. Those of a higher `priority` are served
    first while they have credit.
    """

    queue: str
    consumer: str
    tag: int
    batch: int = 1
    credit: int = 1
    group: str | None = None
    options: NamedOptions = None
    priority: int = 0


class SetCredit(msgspec.Struct, frozen=True):
    """Change how many unanswered messages a consumer, or its group, may hold."""

    queue: str
    consumer: str
    credit: int


class Unsubscribe(msgspec.Struct, frozen=True):
    """Remove a consumer that leaves or is lost. Its unanswered messages go back to the queue and count as attempted;
    with `keep`, it may still answer them later.

    `begun` lists, for deliveries of which that is known, the runs it had begun; only those count as attempted then.
    """

    queue: str
    consumer: str
    begun: dict[int, list[tuple[int, int]]] = {}
    keep: bool = False


class Pull(msgspec.Struct, frozen=True, gc=False):
    """Ask for messages (Q16), waiting up to `wait` microseconds. The delivery carries `tag`."""

    queue: str
    consumer: str
    tag: int
    count: int = 1
    newest: bool = False
    wait: int = 0
    clear_after: str = "none"


class CancelPull(msgspec.Struct, frozen=True):
    """Stop a pull's wait. Returns whether it was still waiting."""

    queue: str
    tag: int


class HandOver(msgspec.Struct, frozen=True):
    """Hand a delivery over to its consumer. Returns the runs that it may still process."""

    queue: str
    lease: int
    consumer: str


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Answer for some or all messages of a delivery. Returns how many were settled: 0 for a late or second answer."""

    queue: str
    lease: int
    settlement: Settlement
    runs: list[tuple[int, int]] | None = None


class Renew(msgspec.Struct, frozen=True):
    """Start a delivery's time for an answer again. Returns False if the delivery is over."""

    queue: str
    lease: int


class Reclaim(msgspec.Struct, frozen=True):
    """After a restart of the broker that a consumer survived: it still holds this delivery. Returns how many of its
    messages are in flight to it again; if none are, the number that are back in their queue, as a negative number."""

    queue: str
    lease: int
    consumer: str
    runs: list[tuple[int, int]]
    pulled: bool = False


class Abandon(msgspec.Struct, frozen=True):
    """Put back a delivery whose consumer is gone. Of its unanswered messages, the runs in `begun` count as attempted;
    None means that these are unknown, and then all of them count."""

    queue: str
    lease: int
    consumer: str
    begun: list[tuple[int, int]] | None = None


class DeclareQueue(msgspec.Struct, frozen=True):
    """Create a queue. One that exists keeps its options; the result says how they differ from those requested."""

    queue: str
    options: NamedOptions = None


class ConfigureQueue(msgspec.Struct, frozen=True):
    """Change options of a live queue; its type stays."""

    queue: str
    options: dict[str, Any]
    who: str | None = None


class SetStatus(msgspec.Struct, frozen=True):
    queue: str
    status: Status
    who: str | None = None


class RemoveQueue(msgspec.Struct, frozen=True):
    """Remove a queue; the messages in it end."""

    queue: str
    who: str | None = None


class Clear(msgspec.Struct, frozen=True):
    """End waiting messages: the "priority" ones, the "regular" ones, or "all", delayed ones included."""

    queue: str
    lanes: str = "all"
    offsets: tuple[tuple[int, int], ...] | None = None
    who: str | None = None
    reason: str = "cleared"


class Reprocess(msgspec.Struct, frozen=True):
    """Send failed messages back to the queue as new, as many as its limit has room for. Returns how many."""

    queue: str
    filter: MessageFilter
    who: str | None = None


class Forget(msgspec.Struct, frozen=True):
    """Delete parked messages for good. Returns how many."""

    queue: str
    filter: MessageFilter
    who: str | None = None


class Move(msgspec.Struct, frozen=True):
    """Move messages to another queue: those that wait and, by filter, those that failed. Returns how many."""

    queue: str
    to: str
    filter: MessageFilter
    who: str | None = None


class EndUnreadable(msgspec.Struct, frozen=True):
    """End messages whose record cannot be read back from the log, with that as the reason."""

    queue: str
    runs: tuple[tuple[int, int], ...]


class DeclareExchange(msgspec.Struct, frozen=True):
    """Create an exchange with its bindings, or replace the one of the same name."""

    exchange: str
    kind: ExchangeKind
    bindings: tuple[Binding, ...] = ()


class RemoveExchange(msgspec.Struct, frozen=True):
    exchange: str


class Bind(msgspec.Struct, frozen=True):
    exchange: str
    binding: Binding


class Unbind(msgspec.Struct, frozen=True):
    exchange: str
    binding: Binding


Command = (
    Publish
    | SkipSpooled
    | Subscribe
    | SetCredit
    | Unsubscribe
    | Pull
    | CancelPull
    | HandOver
    | Settle
    | Renew
    | Reclaim
    | Abandon
    | DeclareQueue
    | ConfigureQueue
    | SetStatus
    | RemoveQueue
    | Clear
    | Reprocess
    | Forget
    | Move
    | EndUnreadable
    | DeclareExchange
    | RemoveExchange
    | Bind
    | Unbind
)
