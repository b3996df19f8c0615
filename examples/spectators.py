"""Spectators: read everything that ever happened from the log, from any offset, without consuming anything."""

from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)


@bus.subscribe("order.placed", queue="ship", retry="never")
def ship(number: int) -> None:
    if number == 2:
        raise ValueError("no address")


with data, bus:
    bus.publish_many("order.placed", [1, 2, 3])
    bus.run(until_idle=True)

    spectator = bus.broker.spectate()
    for record in spectator.messages():
        for message in record.messages:
            print(f"message {message.name} {message.body.decode()}")
    for events in spectator.events():
        for event in events.rows:
            last = event.first + event.count - 1  # adjacent messages with the same fate share an event
            print(f"event   {event.queue} {event.first}-{last} {event.state.name.lower()} {event.reason or ''}")
