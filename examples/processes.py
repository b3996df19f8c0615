"""Processes: for code that needs a whole core or may crash. A crash costs that one message one attempt."""

import os
from tempfile import TemporaryDirectory

from remuda import Bus


def decode(picture: str) -> None:
    """Stands in for a library that crashes the whole process."""
    if picture == "broken.png":
        os._exit(11)
    print(f"{picture} decoded in its own process", flush=True)


def main() -> None:
    with TemporaryDirectory() as data, Bus(data) as bus:
        bus.subscribe("picture", executor="processes", retry="never")(decode)
        bus.publish("picture", "cat.png")
        broken = bus.publish("picture", "broken.png")
        bus.publish("picture", "dog.png")
        bus.run(until_idle=True)
        print("broken.png:", bus.broker.message(broken).queues[0].reason)


# Worker processes import this file again, so starting them must not happen at import.
if __name__ == "__main__":
    main()
