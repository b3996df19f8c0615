"""A process that gets killed at a named point: `python -m tests.outbox.victim URL BROKER ROLE [ARGUMENTS]`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remuda import Bus
from remuda.outbox import Inbox, Outbox, crash_points
from tests.outbox.kit import connect


def bus_with_outbox(url: str, broker: str, **options: Any) -> Bus:
    bus = Bus(broker)
    Outbox(bus, url, lease="1s", **options)
    return bus


def publish(url: str, broker: str, number: str) -> None:
    """One row of the application's own and one message, in one transaction."""
    bus = bus_with_outbox(url, broker)
    connection = connect(url)
    crash_points.point("began")
    connection.execute(f"INSERT INTO orders (number) VALUES ({int(number)})")
    crash_points.point("inserted")
    bus.publish("order", int(number), transaction=connection)
    crash_points.point("published")
    connection.commit()
    crash_points.point("committed")
    connection.close()


def relay(url: str, broker: str) -> None:
    """Send until killed; the broker's directory keeps what was sent."""
    bus = bus_with_outbox(url, broker, batch=10)
    bus.broker.create_queue("all", type="pull", patterns=["#"])
    bus.outbox.relay.start()  # type: ignore[union-attr]
    print("relaying", flush=True)
    time.sleep(60)


def handle(url: str, broker: str) -> None:
    """Handle with an inbox until killed."""
    bus = bus_with_outbox(url, broker)
    inbox = Inbox(url, provide={_Connection: lambda: connect(url)})

    @bus.subscribe("order", queue="orders", retry=["10ms"] * 5)
    @inbox.once
    def ship(number: int, connection: _Connection) -> None:
        connection.execute(f"INSERT INTO shipped (number) VALUES ({number})")

    bus.run(until_idle=True)
    bus.close()
    Path(broker, "..", "done").resolve().touch()


class _Connection:
    """The type that the handler asks for; which database it is, is the test's choice."""

    def execute(self, sql: str) -> None: ...


if __name__ == "__main__":
    url, broker, role, *rest = sys.argv[1:]
    roles: dict[str, Callable[..., None]] = {"publish": publish, "relay": relay, "handle": handle}
    roles[role](url, broker, *rest)
