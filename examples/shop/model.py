"""The bodies of the shop's messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    number: int
    item: str
    price: int
    address: str = "12 Mill Lane"
    express: bool = False


@dataclass(frozen=True)
class Payment:
    """The bank's answer."""

    order: Order
    accepted: bool
