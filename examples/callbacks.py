"""Callbacks: the handler's return value is published to a topic, where a later step can undo an earlier one."""

from dataclasses import dataclass
from tempfile import TemporaryDirectory

from remuda import Bus, Headers, Response

data = TemporaryDirectory()
bus = Bus(data.name)
stock = {"apple": 1}


@dataclass
class Order:
    item: str
    price: int


@dataclass
class Payment:
    item: str
    paid: bool


@bus.subscribe("order.placed")
def reserve(order: Order) -> None:
    stock[order.item] -= 1
    print(f"reserved one {order.item}, {stock[order.item]} left")
    bus.publish("payment.due", order, callback="payment.done")


@bus.subscribe("payment.due")
def pay(order: Order, response: Response) -> Payment:
    response.headers["bank"] = "first"
    return Payment(order.item, paid=order.price < 100)


@bus.subscribe("payment.done")
def settle(payment: Payment, headers: Headers) -> None:
    if payment.paid:
        print(f"paid, says bank {headers['bank']}")
        return
    stock[payment.item] += 1
    print(f"not paid: the {payment.item} goes back, {stock[payment.item]} left (answer to {headers['cap-corr-id']})")


with data, bus:
    bus.publish("order.placed", Order("apple", price=250))
    bus.run(until_idle=True)
