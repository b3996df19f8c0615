"""Prometheus metrics: pip install "remuda[metrics]"."""

from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry, generate_latest

from remuda import Bus
from remuda.bus.observing.metrics import Metrics

data = TemporaryDirectory()
metrics = Metrics(CollectorRegistry())
bus = Bus(data.name, middleware=[metrics])
metrics.watch(bus)  # the queues' metrics too; metrics.serve(9100) serves Prometheus


@bus.subscribe("order.placed", queue="ship", retry="never")
def ship(number: int) -> None:
    if number % 5 == 0:
        raise ValueError("no address")


with data, bus:
    bus.publish_many("order.placed", range(1, 11))
    bus.run(until_idle=True)
    for line in generate_latest(metrics.registry).decode().splitlines():
        if 'queue="ship"' in line and "_bucket" not in line and "_created" not in line:
            print(line)
