"""Processes: for code that needs a whole core, or that may crash. A crash is one failed attempt of that one message."""

import os
from tempfile import TemporaryDirectory

from remuda import Bus


def decode(picture: str) -> None:
    """Stands for a library that takes the whole process down."""
    if picture == "broken.png":
        os._exit(11)
    print(f"{picture} decoded in a process of its own", flush=True)


def main() -> None:
    with TemporaryDirectory() as data, Bus(data) as bus:
        bus.subscribe("picture", executor="processes", retry="never")(decode)
        bus.publish("picture", "cat.png")
        broken = bus.publish("picture", "broken.png")
        bus.publish("picture", "dog.png")
        bus.run(until_idle=True)
        print("broken.png:", bus.broker.message(broken).queues[0].reason)


# Processes import this file anew, so what starts them must not run at import.
if __name__ == "__main__":
    main()
