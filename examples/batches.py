"""Batches: publish many messages for about the cost of one, and handle them as a list."""

from dataclasses import dataclass
from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)


@dataclass
class Reading:
    sensor: int
    celsius: float


@bus.subscribe("reading", batch=400)
def store(readings: list[Reading]) -> None:
    mean = sum(reading.celsius for reading in readings) / len(readings)
    print(f"{len(readings)} readings in one call, {mean:.1f} degrees on average")


with data, bus:
    bus.publish_many("reading", [Reading(number, 20 + number % 5) for number in range(1000)])
    bus.run(until_idle=True)
