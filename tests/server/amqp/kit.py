"""A client made of pika, with what tests ask for again and again."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions

_numbers = itertools.count(1)


def fresh(what: str = "q") -> str:
    """A name that no other test has."""
    return f"{what}-{next(_numbers)}"


def eventually(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """The first true answer, within a generous time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    return found


def closing(channel: Any) -> list[Any]:
    """Where the reason will be once a channel is closed."""
    reasons: list[Any] = []
    channel._impl.add_on_close_callback(lambda _, reason: reasons.append(reason))
    return reasons


class Client:
    """A connection with one channel that confirms."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.open()

    def open(self, *, confirms: bool = True) -> Any:
        channel = self.connection.channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    def publish(self, queue: str, *bodies: bytes, exchange: str = "", **properties: Any) -> None:
        for body in bodies:
            self.channel.basic_publish(exchange, queue, body, pika.BasicProperties(**properties))

    @staticmethod
    def properties(**given: Any) -> Any:
        return pika.BasicProperties(**given)

    def get(self, queue: str, *, ack: bool = True) -> tuple[Any, Any, bytes]:
        """The next message, as soon as there is one."""
        found: list[Any] = []

        def there() -> bool:
            method, properties, body = self.channel.basic_get(queue, auto_ack=ack)
            if method is not None:
                found.extend((method, properties, body))
            return method is not None

        eventually(there)
        return found[0], found[1], found[2]

    def bodies(self, queue: str) -> list[bytes]:
        """All messages that wait now."""
        bodies: list[bytes] = []
        while True:
            method, _, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return bodies
            bodies.append(body)

    def waiting(self, queue: str) -> int:
        count: int = self.channel.queue_declare(queue, passive=True).method.message_count
        return count

    def refused(self, ask: Callable[[Any], Any]) -> tuple[int, str]:
        """The code and text with which the server closes a channel for this."""
        channel = self.connection.channel()
        reason = closing(channel)
        with contextlib.suppress(pika.exceptions.AMQPError):
            ask(channel)
        eventually(lambda: self.connection.process_data_events(0.05) or reason)
        return reason[0].reply_code, reason[0].reply_text

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.connection.is_open:
            self.connection.close()
