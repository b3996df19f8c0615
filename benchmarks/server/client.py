"""`python -m benchmarks.server.client publish|consume URL QUEUE COUNT BYTES WINDOW`: a client in its own process.

It connects, says so, waits for a line, and then works: publishes with confirms, or consumes with a prefetch of 1000 and
acknowledges batch by batch.
"""

from __future__ import annotations

import sys

from remuda.amqp.confirms import Outgoing, Receipt
from remuda.amqp.connection import Connection
from remuda.amqp.properties import PERSISTENT, Properties, encode_properties

_PREFETCH = 1000


def publish(url: str, queue: str, count: int, size: int, window: int) -> None:
    batch = max(window // 4, 1)
    message = Outgoing("", queue, encode_properties(Properties(delivery_mode=PERSISTENT)), bytes(size))
    with Connection(url) as connection:
        channel = connection.channel(confirms=True)
        _await_start()
        waiting: list[Receipt] = []
        for start in range(0, count, batch):
            if len(waiting) * batch >= window:
                waiting.pop(0).wait(120)
            waiting.append(channel.publish_many([message] * min(batch, count - start)))
        for receipt in waiting:
            receipt.wait(120)


def consume(url: str, queue: str, count: int, size: int, window: int) -> None:
    with Connection(url) as connection:
        consumer = connection.channel(prefetch=_PREFETCH).consume(queue)
        _await_start()
        seen = 0
        while seen < count:
            seen += consumer.ack(consumer.get(_PREFETCH, 120))


def _await_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    work, url, queue, *numbers = sys.argv[1:]
    {"publish": publish, "consume": consume}[work](url, queue, *map(int, numbers))
