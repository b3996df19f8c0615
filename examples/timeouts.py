"""Timeouts that really interrupt: a thread gets an exception, a coroutine is cancelled, a process is killed."""

import asyncio
import time
from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)


@bus.subscribe("report", timeout="200ms", retry="never")
def slow_thread(name: str) -> None:
    while True:
        time.sleep(0.01)


@bus.subscribe("report", timeout="200ms", retry="never")
async def slow_coroutine(name: str) -> None:
    await asyncio.sleep(60)


@bus.subscribe("report")
def quick(name: str) -> None:
    print(f"{name}: other handlers are not held up")


with data, bus:
    message = bus.publish("report", "sales")
    bus.run(until_idle=True)
    for copy in bus.broker.message(message).queues:
        print(f"{copy.queue:22} {copy.state.name:10} {copy.reason or ''}")
