"""Besides `publish`: `call` waits for a worker's reply, `send` runs the handlers here and now."""

from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)


@bus.subscribe("price.of")
def price(item: str) -> int:
    return len(item) * 10


with data, bus:
    print("sent, answered in this thread:", bus.send("price.of", "pear"))

    bus.start()
    print("called, answered by a worker:", bus.call("price.of", "banana", result=int))
