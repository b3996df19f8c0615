"""Delayed messages wait on disk until they are due; expired ones are not handled."""

import time
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)
began = time.monotonic()


@bus.subscribe("reminder")
def remind(text: str) -> None:
    print(f"after {time.monotonic() - began:.1f} s: {text}")
    if text == "tea is ready":
        bus.stop()


with data, bus:
    bus.publish("reminder", "kettle is on")
    bus.publish("reminder", "tea is ready", delay="600ms")
    bus.publish("reminder", "water boils", delay="300ms")
    bus.publish("reminder", "tomorrow", at=datetime.now(UTC) + timedelta(days=1))
    late = bus.publish("reminder", "too late for this", expires="1ms")
    time.sleep(0.01)
    bus.run()
    print("still to come:", bus.broker.queue("delayed.remind").delayed)
    print("the late one:", bus.broker.message(late).queues[0].reason)
