"""The first minute: publish a message and handle it. It is on disk before `publish` returns."""

from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)


@bus.subscribe("greeting")
def greet(name: str) -> None:
    print(f"Hello, {name}!")


with data, bus:
    bus.publish("greeting", "world")
    bus.run(until_idle=True)
