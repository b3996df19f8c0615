"""The shop's own database. An order and the message about it are committed together, or neither is."""

from __future__ import annotations

import sqlite3

from examples.shop.model import Order
from remuda import Bus
from remuda.outbox import Outbox


class Orders:
    """A table of orders, in the same file as the outbox."""

    def __init__(self, bus: Bus, path: str) -> None:
        self._bus = bus
        self._db = sqlite3.connect(path)
        self._db.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER, item TEXT, price INTEGER)")
        self.outbox = Outbox(bus, f"sqlite:///{path}")
        self.outbox.create_tables()

    def place(self, order: Order) -> None:
        with self._bus.transaction(self._db):
            self._db.execute("INSERT INTO orders VALUES (?, ?, ?)", (order.number, order.item, order.price))
            self._bus.publish("order.placed", order)

    def are_sent(self) -> bool:
        """Whether all messages of committed orders have been sent."""
        return self.outbox.relay.is_idle()

    def close(self) -> None:
        self._db.close()
