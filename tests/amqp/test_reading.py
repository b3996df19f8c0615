"""A client reads runs of deliveries at once, and finds the same as a parser that reads them one by one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.delivery_parser import Deliveries, DeliveryReader
from remuda.amqp.codec.frames import HEARTBEAT, Event, FrameParser, add_content, method_frame
from remuda.amqp.codec.methods import BasicAck, BasicDeliver

Sent = tuple[int, str, bool, str, bytes, bytes]
"""Channel, consumer, redelivered, routing key, properties and body."""

sent = st.tuples(
    st.sampled_from([1, 1, 1, 2]), st.sampled_from(["c", "c", "d", "other"]), st.sampled_from([False, False, True]),
    st.sampled_from(["q", "q", "k"]), st.sampled_from([b"\x00\x00", b"\x10\x00\x02", b"\x10\x00\x01"]),
    st.sampled_from([b"body", b"bodz", b"", b"\xce" * 4, b"longer than others"]),
)  # fmt: skip


def on_the_wire(messages: list[Sent]) -> bytes:
    out: list[bytes] = []
    for tag, (channel, consumer, again, key, properties, body) in enumerate(messages, 1):
        frame = method_frame(channel, BasicDeliver(consumer, tag, again, "x", key))
        add_content(out, frame, channel, properties, body, 4096)
    return b"".join(out)


def plain(events: list[Event]) -> list[tuple[int, str, Delivery]]:
    """Deliveries, whether they came together or not."""
    found = []
    for channel, method, properties, body in events:
        if isinstance(method, Deliveries):
            found += [(channel, method.like.consumer_tag, one) for one in method.of_epoch(3)]
        elif isinstance(method, BasicDeliver):
            one = Delivery(
                method.delivery_tag, 3, method.redelivered, method.exchange, method.routing_key, properties, body
            )
            found.append((channel, method.consumer_tag, one))
    return found


def fed(parser: FrameParser, data: bytes, cut: int) -> list[Event]:
    return [event for start in range(0, len(data), cut) for event in parser.feed(data[start : start + cut])]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(sent, st.integers(1, 20)), max_size=12), st.sampled_from([7, 100, 1000, 1 << 20]))
def test_runs_are_what_single_deliveries_are(stretches: list[tuple[Sent, int]], cut: int) -> None:
    data = on_the_wire([message for message, count in stretches for _ in range(count)])
    reader, parser = DeliveryReader(), FrameParser()
    assert plain(fed(reader, data, cut)) == plain(fed(parser, data, cut))
    assert reader.error is parser.error is None


def test_a_long_run_is_a_few_events() -> None:
    """What is read together costs a few calls for hundreds of messages."""
    data = on_the_wire([(1, "c", False, "q", b"\x00\x00", b"%05d" % number) for number in range(1000)])
    events = DeliveryReader().feed(data)
    assert len(plain(events)) == 1000
    assert len(events) < 20


@pytest.mark.parametrize("between", [HEARTBEAT, method_frame(2, BasicAck(5, True))])
def test_what_stands_between_deliveries_comes_out_in_its_place(between: bytes) -> None:
    half = [(1, "c", False, "q", b"\x00\x00", b"body")] * 10
    events = DeliveryReader().feed(on_the_wire(half) + between + on_the_wire(half))
    kinds = [len(event[1].tags) if isinstance(event[1], Deliveries) else type(event[1]).__name__ for event in events]
    other = FrameParser().feed(between)[0][1]
    assert type(other).__name__ in kinds
    before = kinds.index(type(other).__name__)
    assert len(plain(events[:before])) == len(plain(events[before + 1 :])) == 10


@pytest.mark.parametrize("at", [-1, -6, -12, -40])
def test_a_broken_delivery_in_a_run_breaks_the_protocol_and_spares_those_before(at: int) -> None:
    data = bytearray(on_the_wire([(1, "c", False, "q", b"\x00\x00", b"body")] * 20))
    whole = bytes(data)
    data[at] ^= 0xFF
    reader, parser = DeliveryReader(), FrameParser()
    assert plain(reader.feed(bytes(data))) == plain(parser.feed(bytes(data)))
    assert str(reader.error) == str(parser.error)
    assert len(plain(DeliveryReader().feed(whole))) == 20
