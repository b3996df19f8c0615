"""The shop's services. Each method is a handler with its own queue, named `Class.method`."""

from __future__ import annotations

import time

from examples.shop.model import Order, Payment
from remuda import Attempt, Bus, Message, handles


class Warehouse:
    """Reserves, packs, and takes back."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.stock = {"teapot": 5, "lamp": 3, "piano": 1}

    @handles("order.placed")
    def reserve(self, order: Order) -> None:
        self.stock[order.item] -= 1
        self._bus.publish("payment.due", order, callback="payment.answered")

    @handles("order.paid", timeout="500ms", retry=["500ms"])
    def pack(self, order: Order, attempt: Attempt) -> None:
        while order.number == 3 and attempt == 1:
            time.sleep(0.01)  # the packing robot hangs, until the timeout interrupts it
        self._bus.publish("parcel.packed", order)

    @handles("order.cancelled")
    def take_back(self, order: Order) -> None:
        self.stock[order.item] += 1


class Bank:
    """Answers late, and not always with a yes."""

    @handles("payment.due", retry=["300ms", "700ms", "2s"])
    def charge(self, order: Order, attempt: Attempt) -> Payment:
        if order.number == 2 and attempt < 3:
            raise ConnectionError("the bank does not answer")
        return Payment(order, accepted=order.price < 1000)


class Counter:
    """Continues after the bank's answer, or undoes what was done before."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @handles("payment.answered")
    def settle(self, payment: Payment) -> None:
        self._bus.publish("order.paid" if payment.accepted else "order.cancelled", payment.order)


class Courier:
    """Delivers by drone if the customer asked for it, otherwise by van."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.printer_works = False

    @handles("parcel.packed", queue="Courier.label", retry="never")
    def label(self, order: Order) -> None:
        if not order.address.isascii() and not self.printer_works:
            raise UnicodeError(f"the label printer has no letters for {order.address}")
        self._bus.publish("parcel.express" if order.express else "parcel.standard", order)

    @handles("parcel.express", queue="Courier.drone", retry=["400ms"], failover="Courier.van")
    def drone(self, order: Order) -> None:
        raise OSError("too windy for the drone")

    @handles("parcel.standard", queue="Courier.van")
    def van(self, order: Order) -> None:
        self._bus.publish("order.delivered", order)


class Customer:
    """Receives news of every order."""

    def __init__(self) -> None:
        self.letters: list[str] = []

    @handles("order.delivered", "order.cancelled")
    def notify(self, order: Order, message: Message) -> None:
        self.letters.append(f"order {order.number} ({order.item}): {message.name.removeprefix('order.')}")

    @handles("review.wanted")
    def ask(self, order: Order) -> None:
        self.letters.append(f"order {order.number} ({order.item}): how do you like it?")
