"""A bus's outbox: publishing in the caller's transaction, and the relay that sends what was committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from remuda.bus.health import bus_health
from remuda.bus.settings.retry import RetryPolicy, RetrySpec, policy
from remuda.model.errors import InvalidOption, RemudaError, StorageError
from remuda.model.messages import Messages
from remuda.model.values.durations import SECOND, Duration, micros
from remuda.model.values.texts import read_flag
from remuda.outbox import transaction
from remuda.outbox.admin import Administration
from remuda.outbox.database import rows
from remuda.outbox.database.connections import connect, dialect_of
from remuda.outbox.database.drivers import Writer
from remuda.outbox.database.table_names import Names
from remuda.outbox.fallback import SafetyNet, Way
from remuda.outbox.journal import Journal
from remuda.outbox.records import Collected, Status, Stored
from remuda.outbox.relay import Relay, RelayOptions, Threshold
from remuda.outbox.sending import send

if TYPE_CHECKING:
    from remuda.bus.bus import Bus


class Outbox:
    """Attaches an outbox to a bus: from then on `bus.publish(..., transaction=connection)` works, and the relay runs
    inside `bus.run()`, unless `relay` is false."""

    def __init__(
        self,
        bus: Bus,
        url: str,
        *,
        schema: str = "public",
        prefix: str = "remuda_",
        relay: bool = True,
        batch: int = 1000,
        lease: Duration = "15s",
        retry: RetrySpec = "cap",
        on_threshold: Threshold | None = None,
        keep_succeeded: Duration = "1d",
        keep_failed: Duration = "15d",
        keep_inbox: Duration = "7d",
        collect_every: Duration = "1h",
        journal: str | None = None,
    ) -> None:
        if not hasattr(bus, "companions"):
            raise InvalidOption(f"an outbox is attached to a Bus, not to {bus!r}")
        read_flag("relay", relay)
        if getattr(bus, "outbox", None) is not None:
            raise RemudaError("the bus already has an outbox, and can have only one")
        dialect_of(url)
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= 100_000:
            raise InvalidOption(f"batch must be 1 to 100000, not {batch!r}")
        if on_threshold is not None and not callable(on_threshold):
            raise InvalidOption(f"on_threshold must be a function of id, topic and reason, not {on_threshold!r}")
        chosen = policy(retry)
        if not isinstance(chosen, RetryPolicy):
            raise InvalidOption("retry must be a policy, the name of one such as 'never', or a list of waits")
        self.url = url
        self.names = Names(prefix, schema)
        options = RelayOptions(
            batch=batch,
            lease=read_seconds("lease", lease, least=0.1),
            retry=chosen,
            keep_succeeded=read_seconds("keep_succeeded", keep_succeeded),
            keep_failed=read_seconds("keep_failed", keep_failed),
            keep_inbox=read_seconds("keep_inbox", keep_inbox),
            collect_every=read_seconds("collect_every", collect_every, least=0.01),
            on_threshold=on_threshold,
        )
        self._bus = bus
        self._writer = Writer(self.names)
        self.relay = Relay(bus, url, self.names, options)
        self._net = SafetyNet(
            self._persist, self._send, Way("broker", self._ask_broker), Way("database", self._ask_database),
            Journal(journal) if journal is not None else None,
        )  # fmt: skip
        bus.outbox = self
        if journal is not None:
            bus.companions.append(self._net)
        if relay:
            bus.companions.append(self.relay)

    # For the bus

    def connection(self, given: Any) -> Any:
        """The connection to write through: the given one, or that of the enclosing `with bus.transaction(...)`."""
        return given if given is not None else transaction.current.get()

    def write(self, messages: Messages, connection: Any) -> list[str]:
        messages = _ready(messages)
        if len(messages):
            self._writer.write(messages, connection)
        return [messages.id(row) for row in range(len(messages))]

    async def write_async(self, messages: Messages, connection: Any) -> list[str]:
        messages = _ready(messages)
        if len(messages):
            await self._writer.write_async(messages, connection)
        return [messages.id(row) for row in range(len(messages))]

    def transaction(self, connection: Any) -> transaction.Transaction:
        return transaction.Transaction(connection, self.relay.wake)

    def deliver(self, messages: Messages, send: Callable[[Messages], list[str]]) -> list[str]:
        """Send outside a transaction. Messages that the broker cannot take are kept in the journal or the table."""
        return self._net.deliver(messages, send)

    def close(self) -> None:
        self.relay.stop()
        self._net.close()

    # For operators

    def create_tables(self) -> list[int]:
        """Create or upgrade the tables; returns the versions that were installed."""
        with Administration.open(self.url, self.names) as administration:
            return administration.upgrade()

    def status(self, message: str) -> Stored | None:
        """A message's status; None if the outbox does not know it, or no longer does."""
        with Administration.open(self.url, self.names) as administration:
            return administration.status(message)

    def messages(self, status: Status | str, *, limit: int = 100) -> list[Stored]:
        """Messages of one status, the newest first."""
        try:
            wanted = Status(status)
        except ValueError:
            raise InvalidOption(f"status must be one of {', '.join(Status)}; not {status!r}") from None
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidOption(f"limit must be at least 1, not {limit!r}")
        with Administration.open(self.url, self.names) as administration:
            return administration.messages(wanted, limit)

    def counts(self) -> dict[Status, int]:
        """The number of messages in each status."""
        with Administration.open(self.url, self.names) as administration:
            return administration.counts()

    def retry(self, ids: Sequence[str] | None = None) -> int:
        """Send failed and delayed messages now, all or these, with a fresh count of attempts."""
        with Administration.open(self.url, self.names) as administration:
            number = administration.retry(ids)
        self.relay.retry_soon()
        return number

    def collect(self) -> Collected:
        """Remove expired rows now; the relay also does so at intervals, by default every hour."""
        return self.relay.collect()

    @property
    def lost(self) -> int:
        """Messages that neither the broker nor the database accepted, without a journal."""
        return self._net.lost

    def _send(self, messages: Messages) -> dict[int, str]:
        return send(self._bus, messages)

    def _ask_broker(self) -> None:
        health = bus_health(self._bus.broker, True, None)
        if not health["ready"]:
            raise StorageError("; ".join(health.get("problems", {}).values()) or "it is not ready")

    def _ask_database(self) -> None:
        connect(self.url, self.names).close()

    def _persist(self, messages: Messages) -> None:
        session = connect(self.url, self.names)
        try:
            with session.transaction():
                self._writer.write(messages, session.connection)
        finally:
            session.close()
        self.relay.wake()


def _ready(messages: Messages) -> Messages:
    return rows.with_ids(messages).checked()


def read_seconds(name: str, value: Duration, least: float = 0.0) -> float:
    try:
        seconds = micros(value) / SECOND
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from None
    if seconds < least:
        raise InvalidOption(f"{name} must be at least {least:g}s, not {value!r}")
    return seconds
