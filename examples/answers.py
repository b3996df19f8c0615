"""What a handler can answer besides success and failure: retry, not now, invalid, not interested."""

from tempfile import TemporaryDirectory

from remuda import Attempt, Bus, NotInterested, NotNow, Reject, Retry

data = TemporaryDirectory()
bus = Bus(data.name)
door = iter(["closed", "open"])


@bus.subscribe("parcel", queue="deliver")
def deliver(parcel: str, attempt: Attempt) -> None:
    match parcel:
        case "heavy" if attempt == 1:
            raise Retry("we need a second pair of hands")  # counts as an attempt; after="5m" would wait
        case "early" if next(door) == "closed":
            raise NotNow("the shop is closed")  # does not count
        case "ticking":
            raise Reject("this is not a parcel")  # kept as invalid
        case "letter":
            raise NotInterested("letters go by bicycle")  # kept as unwanted
    print(f"{parcel} delivered at attempt {attempt}")


with data, bus:
    ids = {parcel: bus.publish("parcel", parcel) for parcel in ("heavy", "early", "ticking", "letter")}
    bus.run(until_idle=True)
    for parcel, id in ids.items():
        copy = bus.broker.message(id).queues[0]
        print(f"{parcel:8} {copy.state.name:15} {'' if copy.success else copy.reason}")
