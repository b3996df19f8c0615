"""Dead letters: messages that fail for good are kept with the reason, and sent back once the cause is fixed."""

from tempfile import TemporaryDirectory

from remuda import Bus

data = TemporaryDirectory()
bus = Bus(data.name)
fixed = False


@bus.subscribe("invoice", queue="print", retry="never")
def print_invoice(number: int) -> None:
    if not fixed:
        raise OSError("out of paper")
    print(f"invoice {number} printed")


with data, bus:
    bus.publish_many("invoice", [1, 2, 3])
    bus.run(until_idle=True)
    for letter in bus.dead_letters("print"):
        print(f"dead: {letter.topic} {letter.body.decode()}, {letter.reason}")

    fixed = True
    print("reprocessed:", bus.reprocess("print", reason="paper", who="ada"))
    bus.run(until_idle=True)

    # Nobody subscribes to this topic. The message is kept anyway, and can be reprocessed once somebody does.
    bus.publish("invioce", 4)
    bus.run(until_idle=True)
    print("unrouted:", bus.dead_letters("remuda.unrouted")[0].reason)
