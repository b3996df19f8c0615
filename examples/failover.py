"""Failover: after its last attempt a message moves to another queue, with a fresh retry schedule."""

from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)


@bus.subscribe("parcel", queue="drone", retry=["50ms"], failover="van")
def by_drone(parcel: dict[str, int]) -> None:
    raise OSError("too windy")


@bus.subscribe("parcel.by-van", queue="van")
def by_van(parcel: dict[str, int]) -> None:
    print(f"parcel {parcel['id']} goes by van")
    bus.stop()


with data, bus:
    bus.publish("parcel", {"id": 7})
    bus.run()
