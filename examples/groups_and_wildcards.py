"""Groups and wildcards: each group gets every message once; `*` matches one word, `#` any number."""

from tempfile import TemporaryDirectory

from remuda import Bus, Message

data = TemporaryDirectory()
bus = Bus(data.name)
seen: list[str] = []


@bus.subscribe("order.*", group="billing")
def bill(number: int, message: Message) -> None:
    seen.append(f"billing   {message.name}")


@bus.subscribe("order.placed", group="shipping")
def ship(number: int, message: Message) -> None:
    seen.append(f"shipping  {message.name}")


@bus.subscribe("#", group="audit")
def audit(body: int, message: Message) -> None:
    seen.append(f"audit     {message.name}")


with data, bus:
    for topic in ("order.placed", "order.cancelled", "order.placed.late", "weather"):
        bus.publish(topic, 1)
    bus.run(until_idle=True)
    print("\n".join(sorted(seen)))
