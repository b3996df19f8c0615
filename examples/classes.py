"""Methods as handlers: register an object with its own state. Queues are named `Class.method`."""

from tempfile import TemporaryDirectory

from remuda import Bus, handles


class Warehouse:
    def __init__(self) -> None:
        self.stock = 0

    @handles("goods.arrived")
    def put(self, count: int) -> None:
        self.stock += count
        print(f"{self.stock} in stock")

    @handles("goods.sold", retry=["100ms"])
    def take(self, count: int) -> None:
        self.stock -= count
        print(f"{self.stock} in stock")


data = TemporaryDirectory()
bus = Bus(data.name)
bus.subscribe_class(Warehouse())

with data, bus:
    bus.publish("goods.arrived", 10)
    bus.run(until_idle=True)
    bus.publish("goods.sold", 3)
    bus.run(until_idle=True)
    print("queues:", ", ".join(handler.queue for handler in bus.handlers))
