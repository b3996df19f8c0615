"""Inputs from delivery to acknowledgement."""

from __future__ import annotations

import itertools
from typing import Final

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.worker.tasks import Task

_NUMBERS: Final = itertools.count()


class Input:
    """One delivery and its task. It is settled once, by the first thread that does so."""

    def __init__(self, delivery: Delivery, channel: Channel) -> None:
        self.number = next(_NUMBERS)
        self.delivery = delivery
        self.task: Task | None = None
        self._unclaimed = [True]
        self._channel = channel

    @property
    def alive(self) -> bool:
        """Whether the delivery can still be acknowledged; otherwise the broker delivers the message again."""
        return self.delivery.epoch == self._channel.epoch and self._channel.ended is None

    def begin(self) -> bool:
        """Whether the caller is the first to begin it, or to send it back instead."""
        try:
            return self._unclaimed.pop()  # atomic
        except IndexError:
            return False

    def acknowledge(self) -> bool:
        return self._channel.ack([self.delivery]) == 1

    def give_back(self) -> bool:
        """Return the message to its queue; the channel makes sure that this happens only once."""
        return self._channel.nack(self.delivery, requeue=True)

    def abort(self) -> None:
        if self.task is not None:
            self.task.abort()


class Inputs:
    """All inputs that are not settled yet. Single operations on a dictionary are atomic, so there is no lock."""

    def __init__(self) -> None:
        self._held: dict[int, Input] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: Input) -> None:
        self._held[held.number] = held

    def remove(self, held: Input) -> bool:
        return self._held.pop(held.number, None) is not None

    def all(self) -> list[Input]:
        return list(self._held.values())

    def drop_lost(self) -> int:
        """Abort and remove the tasks that the broker took back; returns how many there were."""
        lost = [held for held in self.all() if not held.alive]
        for held in lost:
            held.abort()
        return sum(self.remove(held) for held in lost)


class Shipment:
    """Messages that must be confirmed before their input is acknowledged."""

    __slots__ = ("input", "messages", "outcome")

    def __init__(self, held: Input, messages: list[Outgoing], outcome: str) -> None:
        self.input = held
        self.messages = messages
        self.outcome = outcome
