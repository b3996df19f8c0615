"""Coroutines as handlers: with `threads=10`, ten run at once. Coroutines can publish too."""

import asyncio
import time
from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)


@bus.subscribe("page", threads=10)
async def fetch(number: int) -> None:
    await asyncio.sleep(0.2)
    await bus.publish_async("page.fetched", number)


@bus.subscribe("page.fetched")
async def note(number: int) -> None:
    print(f"page {number}", end=" ")


with data, bus:
    bus.publish_many("page", range(10))
    began = time.monotonic()
    bus.run(until_idle=True)
    print(f"\nten pages of 0.2 s took {time.monotonic() - began:.1f} s")
