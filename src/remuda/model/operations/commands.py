"""A broker's commands, as values: the API builds them, the wire carries them, the core executes them.

They are checked where they are built (`remuda.model.operations.verbs`, `remuda.broker.checks`); the core relies on
their types. Each says what its result is, and what its sender needs: on the wire, a command is decoded, allowed and
answered by nothing but its declaration here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_type_hints

import msgspec

from remuda.model.messages import Messages
from remuda.model.notes import Note
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.results import Declared, Differences
from remuda.model.queues.options import QueueOptions, Status
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.records import SpoolTaken
from remuda.model.settlement import Settlement
from remuda.native import columns

NamedOptions = dict[str, Any] | None
"""Queue options by name, as `read_options` gives them."""

R = TypeVar("R", covariant=True)


class Access(StrEnum):
    """What a user may be granted for names of queues, routers and topics."""

    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


class Needs(msgspec.Struct, frozen=True):
    """A field holds the name of something that the sender needs this access to."""

    access: Access
    kind: str = "queue"


Configured = Annotated[str, Needs(Access.CONFIGURE)]
Written = Annotated[str, Needs(Access.WRITE)]
Read = Annotated[str, Needs(Access.READ)]
ConfiguredRouter = Annotated[str, Needs(Access.CONFIGURE, "router")]
ReadRouter = Annotated[str, Needs(Access.READ, "router")]


class Returns(msgspec.Struct, Generic[R], frozen=True):
    """A command, with the type of its result."""


class Once(msgspec.Struct, frozen=True, array_like=True):
    """Store a message only if its id is new, by what was found in the log and what was published since."""

    ever: bool
    """Whether no message at all may have the id; else, none that waits or is being handled."""
    upto: int
    """The offset up to which the log was looked through."""
    found: tuple[int, ...] = ()
    """The messages with this id that were found there, the newest first."""


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
    once: Once | None = None
    note: Note | None = None
    """With it, the last message is a note on another."""


if columns is not None:
    columns.set_publish(Publish)


class SkipSpooled(msgspec.Struct, frozen=True):
    """Count rows of the spool as taken though they are not valid messages, so that they are not read again."""

    spooled: SpoolTaken


class Subscribe(Returns[Differences], frozen=True):
    """Send a consumer a queue's messages as they come: up to `batch` per delivery, and `credit` unanswered ones.

    Deliveries to it carry its `tag`. Consumers of one `group` share one credit. Those of a higher `priority` are served
    first while they have credit.
    """

    queue: Read
    consumer: str
    tag: int
    batch: int = 1
    credit: int = 1
    group: str | None = None
    options: NamedOptions = None
    priority: int = 0


class SetCredit(Returns[None], frozen=True):
    """Change how many unanswered messages a consumer, or its group, may hold."""

    queue: Read
    consumer: str
    credit: int


class Unsubscribe(Returns[None], frozen=True):
    """Remove a consumer that leaves or is lost. Its unanswered messages go back to the queue and count as attempted;
    with `keep`, it may still answer them later.

    `begun` lists, for deliveries of which that is known, the runs it had begun; only those count as attempted then.
    """

    queue: Read
    consumer: str
    begun: dict[int, list[tuple[int, int]]] = {}
    keep: bool = False


class Pull(Returns[Any], frozen=True, gc=False):
    """Ask for messages (Q16), waiting up to `wait` microseconds. The delivery carries `tag`."""

    queue: Read
    consumer: str
    tag: int
    count: int = 1
    newest: bool = False
    wait: int = 0
    clear_after: str = "none"


class CancelPull(Returns[bool], frozen=True):
    """Stop a pull's wait. Returns whether it was still waiting."""

    queue: Read
    tag: int


class HandOver(Returns[list[tuple[int, int]]], frozen=True):
    """Hand a delivery over to its consumer. Returns the runs that it may still process."""

    queue: Read
    lease: int
    consumer: str


class Settle(Returns[int], frozen=True, gc=False):
    """Answer for some or all messages of a delivery. Returns how many were settled: 0 for a late or second answer."""

    queue: Read
    lease: int
    settlement: Settlement
    runs: list[tuple[int, int]] | None = None


class Renew(Returns[bool], frozen=True):
    """Start a delivery's time for an answer again. Returns False if the delivery is over."""

    queue: Read
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


class DeclareQueue(Returns[Declared], frozen=True):
    """Create a queue. One that exists keeps its options; the result says how they differ from those requested."""

    queue: Configured
    options: NamedOptions = None


class ConfigureQueue(Returns[QueueOptions], frozen=True):
    """Change options of a live queue; its type stays."""

    queue: Configured
    options: dict[str, Any]
    who: str | None = None


class SetStatus(Returns[None], frozen=True):
    queue: Configured
    status: Status
    who: str | None = None


class RemoveQueue(Returns[None], frozen=True):
    """Remove a queue; the messages in it end."""

    queue: Configured
    who: str | None = None


class Clear(Returns[int], frozen=True):
    """End waiting messages: the "priority" ones, the "regular" ones, or "all", delayed ones included."""

    queue: Configured
    lanes: str = "all"
    offsets: tuple[tuple[int, int], ...] | None = None
    who: str | None = None
    reason: str = "cleared"


class Reprocess(Returns[int], frozen=True):
    """Send failed messages back to the queue as new, as many as its limit has room for. Returns how many."""

    queue: Configured
    filter: MessageFilter
    who: str | None = None


class RequeueFront(Returns[int], frozen=True):
    """As `Reprocess`, before all that waits with the same priority."""

    queue: Configured
    filter: MessageFilter
    who: str | None = None


class Forget(Returns[int], frozen=True):
    """Delete parked messages for good. Returns how many."""

    queue: Configured
    filter: MessageFilter
    who: str | None = None


class Move(Returns[int], frozen=True):
    """Move messages to another queue: those that wait and, by filter, those that failed. Returns how many."""

    queue: Configured
    to: Written
    filter: MessageFilter
    who: str | None = None


class PauseKey(Returns[None], frozen=True):
    """Hold back a key for a while, for good with an empty duration; "0s" ends that."""

    queue: Configured
    key: str
    duration: str = ""
    who: str | None = None


class EndUnreadable(msgspec.Struct, frozen=True):
    """End messages whose record cannot be read back from the log, with that as the reason."""

    queue: str
    runs: tuple[tuple[int, int], ...]


class DeclareExchange(Returns[None], frozen=True):
    """Create an exchange with its bindings, or replace the one of the same name."""

    exchange: ConfiguredRouter
    kind: ExchangeKind
    bindings: tuple[Binding, ...] = ()


class RemoveExchange(Returns[None], frozen=True):
    exchange: ConfiguredRouter


class Bind(Returns[None], frozen=True):
    exchange: ReadRouter
    binding: Binding


class Unbind(Returns[None], frozen=True):
    exchange: ReadRouter
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
    | RequeueFront
    | Forget
    | Move
    | PauseKey
    | EndUnreadable
    | DeclareExchange
    | RemoveExchange
    | Bind
    | Unbind
)

ON_THE_WIRE: Final[tuple[type[Returns[Any]], ...]] = (
    Subscribe,
    SetCredit,
    Unsubscribe,
    Pull,
    CancelPull,
    HandOver,
    Settle,
    Renew,
    DeclareQueue,
    ConfigureQueue,
    SetStatus,
    RemoveQueue,
    Clear,
    Reprocess,
    Forget,
    Move,
    DeclareExchange,
    RemoveExchange,
    Bind,
    Unbind,
    RequeueFront,
    PauseKey,
)
"""Commands that guests send, by their number on the wire; `Publish` has frames of its own. Add new ones at the end."""


def result_of(command: type[Returns[Any]]) -> Any:
    """The type of a command's result."""
    return get_args(command.__orig_bases__[0])[0]  # type: ignore[attr-defined]


def needs_of(command: type[Returns[Any]]) -> tuple[tuple[str, Needs], ...]:
    """The fields of a command that hold names, with the access that its sender needs to them."""
    hints = get_type_hints(command, include_extras=True)
    fields = ((name, hints[name]) for name in command.__struct_fields__)
    return tuple((name, need) for name, hint in fields for need in get_args(hint)[1:] if isinstance(need, Needs))
