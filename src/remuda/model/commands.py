"""Everything a broker can be asked to do, as values: what a face builds, the core carries out, a wire can bring.

They are checked where they are built (`remuda.broker.checks`); whoever carries one out may rely on its types.
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
    """Take in messages: to the queues of their topics, to `queue` alone, or through `exchange`.

    With `unbound`, only the channels of their topics get them, and what no channel wants goes to that queue.
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
"""Whether a command publishes one message of which nothing special is asked."""
if columns is not None:
    columns.set_publish(Publish)
    is_plain = columns.is_plain


class SkipSpooled(msgspec.Struct, frozen=True):
    """Rows of the spool that can be no messages are done with, too."""

    spooled: SpoolTaken


class Subscribe(msgspec.Struct, frozen=True):
    """A consumer takes messages of a queue as they come, up to `batch` per delivery and `credit` unanswered ones.

    Deliveries to it carry its `tag`. Consumers of one `group` share one credit. Those of a higher `priority` are served
    first, as long as they can take messages.
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
    """A consumer leaves or is lost; what it had not answered goes back, and counts as attempted, unless it keeps it to
    answer later.

    Of some of its deliveries it may be known with which runs it had `begun`; then only those do.
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
    """A pull waits no longer. Gives whether it was still waiting."""

    queue: str
    tag: int


class HandOver(msgspec.Struct, frozen=True):
    """A delivery reaches its consumer's hands. Gives the runs of it that still may."""

    queue: str
    lease: int
    consumer: str


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Answer for some or all messages of a delivery. Gives how many the answer settled: 0 for a late or second one."""

    queue: str
    lease: int
    settlement: Settlement
    runs: list[tuple[int, int]] | None = None


class Renew(msgspec.Struct, frozen=True):
    """Give a delivery's holder the whole time for an answer once more; False if it holds it no longer."""

    queue: str
    lease: int


class Reclaim(msgspec.Struct, frozen=True):
    """After a restart that a holder outlived: it still has this delivery in its hands. Gives how many messages of it
    are in flight and its own once more; where none is, how many are back in their queue, below 0."""

    queue: str
    lease: int
    consumer: str
    runs: list[tuple[int, int]]
    pulled: bool = False


class Abandon(msgspec.Struct, frozen=True):
    """The holder of a delivery is gone. Of what it had not answered, the runs it had `begun` with count as attempted;
    None where nobody knows, and then all of it does."""

    queue: str
    lease: int
    consumer: str
    begun: list[tuple[int, int]] | None = None


class DeclareQueue(msgspec.Struct, frozen=True):
    """Create a queue, or say how the one that exists differs from what is asked. The creator's options stand."""

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
    """Remove a queue; whatever it still holds ends."""

    queue: str
    who: str | None = None


class Clear(msgspec.Struct, frozen=True):
    """End messages that wait: those of "priority", the "regular" ones, or "all", delayed ones included."""

    queue: str
    lanes: str = "all"
    offsets: tuple[tuple[int, int], ...] | None = None
    who: str | None = None
    reason: str = "cleared"


class Reprocess(msgspec.Struct, frozen=True):
    """Send messages that failed back to the queue as new, as many as its limit has room for. Gives how many."""

    queue: str
    filter: MessageFilter
    who: str | None = None


class Forget(msgspec.Struct, frozen=True):
    """Let parked messages go for good. Gives how many."""

    queue: str
    filter: MessageFilter
    who: str | None = None


class Move(msgspec.Struct, frozen=True):
    """Send messages on to another queue: those that wait and, by filter, those that failed. Gives how many."""

    queue: str
    to: str
    filter: MessageFilter
    who: str | None = None


class EndUnreadable(msgspec.Struct, frozen=True):
    """Messages whose record could not be read back from the log end, and say so."""

    queue: str
    runs: tuple[tuple[int, int], ...]


class DeclareExchange(msgspec.Struct, frozen=True):
    """Set an exchange with its bindings, in place of one of the same name."""

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
