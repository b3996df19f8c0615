"""Settings: from a file, from code and from the environment; a queue's own value wins over the general one."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from remuda import Bus
from remuda.model.errors import InvalidOption

data = TemporaryDirectory()
file = Path(data.name, "remuda.toml")
file.write_text("""
[message.retry]
max = 3
intervals = ["5s", "1m", "1h"]

[message.threads]
ship = 4
""")
os.environ["REMUDA_MESSAGE_TIMEOUT__SHIP"] = "30s"
bus = Bus(settings={"message.queue.size": 1000}, config=file)


@bus.subscribe("order.placed", queue="ship")
def ship(number: int) -> None:
    print(f"order {number} shipped")


chosen = bus.queue_settings()["ship"]
print(f"ship: {chosen.threads} threads, {chosen.retry.max_retries} retries, timeout {chosen.timeout} microseconds")

data.cleanup()
try:
    Bus(settings={"message.retry.maximum": 3})
except InvalidOption as error:
    print("refused:", error)
