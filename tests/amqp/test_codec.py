"""The codec: everything that goes in comes out, however the bytes are cut, and hostile bytes give one typed error."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.amqp.codec import methods
from remuda.amqp.codec.frames import FRAME_MAX, HEARTBEAT, Event, FrameParser, add_content, method_frame
from remuda.amqp.codec.methods import (
    BY_INDEX,
    WITH_CONTENT,
    BasicDeliver,
    BasicPublish,
    Heartbeat,
    Method,
    decode_method,
)
from remuda.amqp.codec.properties import (
    EMPTY,
    Properties,
    decode_properties,
    encode_properties,
    raw_headers,
    with_headers,
    without_property,
)
from remuda.amqp.codec.tables import (
    Float32,
    Int8,
    Int16,
    Int64,
    RawText,
    Scaled,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    decode_table,
    encode_table,
    scan,
    with_entries,
)
from remuda.amqp.errors import ProtocolError
from remuda.model.errors import InvalidMessage

if TYPE_CHECKING:
    from remuda.amqp.client.connection import Connection

few = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
short_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def _whole(kind: type[int], low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(kind)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1).filter(lambda n: not -(2**31) <= n < 2**31),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(allow_nan=False),
    short_text,
    st.binary(max_size=60),
    _whole(Int8, -128, 127),
    _whole(UInt8, 0, 255),
    _whole(Int16, -(2**15), 2**15 - 1),
    _whole(UInt16, 0, 2**16 - 1),
    _whole(UInt32, 0, 2**32 - 1),
    _whole(Int64, -(2**31), 2**31 - 1),
    _whole(UInt64, 0, 2**64 - 1),
    _whole(Timestamp, 0, 2**64 - 1),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.binary(max_size=20).map(lambda b: RawText(b"\xff" + b)),
    st.builds(Scaled, st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short_text, inner, max_size=4)
)
tables = st.dictionaries(short_text, values, max_size=8)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def outcome(call: Callable[[bytes], Any], raw: bytes) -> Any:
    """What the call gives, or the one error that it may raise."""
    try:
        return call(raw)
    except ProtocolError as error:
        return error


@few
@given(tables)
def test_tables_round_trip(table: dict[str, Any]) -> None:
    """Every type comes out as it went in, and encodes to the same bytes again."""
    raw = encode_table(table)
    found = decode_table(raw)
    assert same(found, table)
    assert encode_table(found) == raw
    assert [entry.key.decode() for entry in scan(raw)] == list(table)


@few
@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_one_typed_error(raw: bytes) -> None:
    found = outcome(decode_table, raw)
    if isinstance(found, ProtocolError):
        assert found.code == 502
    else:
        assert len(found) <= len(list(scan(raw)))


@few
@given(tables, tables)
def test_entries_are_set_without_touching_others(table: dict[str, Any], changes: dict[str, Any]) -> None:
    raw = with_entries(encode_table(table), changes, without=frozenset({"gone"}))
    expected = {key: value for key, value in {**table, **changes}.items() if key != "gone" or key in changes}
    assert same(decode_table(raw), expected)


def test_values_that_become_amqps() -> None:
    price, big, when = Decimal("-12.345"), Decimal("1E3"), datetime(2026, 5, 1, tzinfo=UTC)
    table = {"when": when, "price": price, "big": big, "t": (1, "x")}
    found = decode_table(encode_table(table))
    assert found["when"].datetime() == when
    assert (found["price"].decimal(), found["big"].decimal()) == (price, big)
    assert found["t"] == [1, "x"]


@pytest.mark.parametrize(
    "table",
    [{5: 1}, {"x" * 256: 1}, {"a": object()}, {"a": 2**63}, {"a": UInt8(256)}, {"a": Scaled(256, 0)},
     {"a": Decimal("nan")}, {"a": Decimal("0.12345678901")}, {"a": "\ud800"}, {"\ud800": 1}, {"a": {"b": {1, 2}}}],
)  # fmt: skip
def test_what_a_table_cannot_hold_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        encode_table(table)


def test_nesting_is_bounded_both_ways() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidMessage, match="nested more than 100 deep"):
        encode_table({"a": deep})
    raw = b""
    for _ in range(20_000):
        raw = b"A" + struct.pack(">I", len(raw)) + raw
    with pytest.raises(ProtocolError, match="nested more than 100 deep"):
        decode_table(b"\x01a" + raw)
    assert len(list(scan(b"\x01a" + raw))) == 1  # and can be handed on all the same


property_sets = st.builds(
    Properties,
    **{
        name: st.none() | kind
        for name, kind in {
            "content_type": short_text, "content_encoding": short_text, "headers": tables,
            "delivery_mode": st.integers(0, 255), "priority": st.integers(0, 255), "correlation_id": short_text,
            "reply_to": short_text, "expiration": short_text, "message_id": short_text,
            "timestamp": st.integers(0, 2**64 - 1), "type": short_text, "user_id": short_text, "app_id": short_text,
            "cluster_id": short_text,
        }.items()
    },
)  # fmt: skip


@few
@given(property_sets, tables)
def test_properties_round_trip(properties: Properties, changes: dict[str, Any]) -> None:
    """Decoded and encoded, and with headers changed in the raw bytes."""
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    assert encode_properties(decode_properties(raw)) == raw
    changed = decode_properties(with_headers(raw, changes))
    assert same(changed.headers, {**(properties.headers or {}), **changes})
    for name in Properties.__struct_fields__:
        if name != "headers":
            assert getattr(changed, name) == getattr(properties, name)
        removed = decode_properties(without_property(raw, name))
        assert getattr(removed, name) is None


@few
@given(st.binary(max_size=100))
def test_any_bytes_are_properties_or_one_typed_error(raw: bytes) -> None:
    for look in (decode_properties, raw_headers, lambda raw: with_headers(raw, {"a": 1})):
        found = outcome(look, raw)
        assert not isinstance(found, ProtocolError) or found.code == 502


@pytest.mark.parametrize(
    "wrong",
    [{"priority": 256}, {"priority": True}, {"delivery_mode": -1}, {"content_type": 5}, {"message_id": "x" * 256},
     {"headers": [1]}, {"timestamp": "now"}],
)  # fmt: skip
def test_wrong_properties_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match=next(iter(wrong))):
        encode_properties(Properties(**wrong))


WIRE = {
    "bit": st.booleans(), "B": st.integers(0, 255), "H": st.integers(0, 65535), "I": st.integers(0, 2**32 - 1),
    "Q": st.integers(0, 2**64 - 1), "shortstr": short_text, "longstr": st.binary(max_size=50), "table": tables,
}  # fmt: skip


@st.composite
def any_method(draw: st.DrawFn, kinds: list[type[Method]] = sorted(BY_INDEX.values(), key=lambda k: k.index)) -> Method:  # noqa: B008
    kind = draw(st.sampled_from(kinds))
    fields = {name: draw(WIRE[get_args(kind.__annotations__[name])[1]]) for name in kind.__struct_fields__}
    return kind(**fields)


@few
@given(any_method())
def test_methods_round_trip(method: Method) -> None:
    payload = methods.encode_method(method)
    found = decode_method(payload, 0, len(payload))
    assert found == method
    assert methods.encode_method(found) == payload


def test_every_method_of_rabbitmq_is_there() -> None:
    by_class: dict[int, int] = {}
    for index in BY_INDEX:
        by_class[index[1]] = by_class.get(index[1], 0) + 1
    assert by_class == {10: 14, 20: 6, 40: 8, 50: 10, 60: 18, 85: 2, 90: 6}


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Event], bytes]:
    """Events and the bytes that make them, with contents split by a small frame_max."""
    events: list[Event] = []
    out: list[bytes] = []
    for _ in range(draw(st.integers(0, 8))):
        method = draw(any_method())
        channel = 0 if method.index[:2] == b"\x00\x0a" else draw(st.integers(1, 3))
        if method.index in WITH_CONTENT:
            properties = encode_properties(draw(property_sets.filter(lambda p: len(encode_properties(p)) < 4000)))
            body = draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 1, 1, 300]))
            add_content(out, method_frame(channel, method), channel, properties, body, 4096)
            events.append((channel, method, properties, body))
        else:
            out.append(method_frame(channel, method))
            events.append((channel, method, b"", b""))
        if draw(st.booleans()):
            out.append(HEARTBEAT)
            events.append((0, Heartbeat(), b"", b""))
    return events, b"".join(out)


@few
@given(streams(), st.data())
def test_a_stream_gives_the_same_events_however_it_is_cut(
    stream: tuple[list[Event], bytes], data: st.DataObject
) -> None:
    expected, raw = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    parser, found = FrameParser(FRAME_MAX), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += parser.feed(raw[start:end])
    assert parser.error is None
    assert found == expected


@few
@given(streams(), st.data())
def test_hostile_bytes_give_events_and_at_most_one_error(
    stream: tuple[list[Event], bytes], data: st.DataObject
) -> None:
    """Flip, cut, insert anything anywhere: whole events before it, then a typed error with a close code, or nothing."""
    _, raw = stream
    broken = bytearray(raw or b"\x00")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(broken) - 1))
        broken[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(min_size=1, max_size=3))
    parser = FrameParser(4096, max_body=100_000)
    parser.feed(bytes(broken))
    if parser.error is not None:
        assert parser.error.code in (311, 501, 502, 503, 505, 540)
        assert parser.feed(raw) == []


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


PUBLISH = method_frame(1, BasicPublish(0, "", "q"))
HEADER = struct.pack(">HHQ", 60, 0, 5) + EMPTY


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"\x07" + bytes(7), 501),
        (b"AMQP\x00\x00\x09\x01", 501),
        (frame(1, 1, b"\x00\x14\x00\x0b\x00\x00\x00\x00", b"\x00"), 501),
        (struct.pack(">BHIB", 1, 1, FRAME_MAX, 0), 501),
        (frame(8, 1, b""), 501),
        (frame(8, 0, b"x"), 501),
        (frame(1, 1, b"\x00\x3c\x00\x63"), 540),
        (frame(1, 1, b"\x00"), 540),
        (frame(1, 1, b"\x00\x32\x00\x0a\x00"), 502),
        (frame(1, 1, b"\x00\x14\x00\x0b\x00\x00\x00\x00trailing"), 502),
        (frame(1, 1, BasicDeliver.index + b"\x05ab"), 502),
        (frame(1, 1, BasicDeliver.index + b"\x00" + bytes(9)), 502),
        (frame(1, 0, b"\x00\x14\x00\x0b\x00\x00\x00\x00"), 503),
        (frame(1, 1, b"\x00\x0a\x00\x33"), 503),
        (frame(2, 1, HEADER), 505),
        (frame(3, 1, b"body"), 505),
        (PUBLISH + PUBLISH, 505),
        (PUBLISH + frame(3, 1, b"body"), 505),
        (PUBLISH + frame(2, 1, HEADER) + frame(2, 1, HEADER), 505),
        (PUBLISH + frame(2, 1, struct.pack(">HHQ", 50, 0, 5) + EMPTY), 505),
        (PUBLISH + frame(2, 1, b"\x00\x3c"), 502),
        (PUBLISH + frame(2, 1, HEADER) + frame(3, 1, b"too long"), 501),
        (PUBLISH + frame(2, 1, struct.pack(">HHQ", 60, 0, 1 << 40) + EMPTY), 311),
    ],
)
def test_each_violation_has_its_close_code(raw: bytes, code: int) -> None:
    """After a valid frame, which still comes out."""
    good = method_frame(2, methods.BasicAck(7, True))
    for cut in (len(good + raw), len(good), 3):
        parser = FrameParser()
        events = parser.feed((good + raw)[:cut]) + parser.feed((good + raw)[cut:])
        assert events == [(2, methods.BasicAck(7, True), b"", b"")]
        assert parser.error is not None
        assert parser.error.code == code


def test_contents_of_several_channels_may_interleave() -> None:
    parts: list[list[bytes]] = [[], []]
    for channel in (1, 2):
        head: list[bytes] = []
        add_content(
            head, method_frame(channel, BasicPublish(0, "", f"q{channel}")), channel, EMPTY, b"x" * 10_000, 4096
        )
        parts[channel - 1] = [b"".join(head[:4]), *(b"".join(head[i : i + 3]) for i in range(4, len(head), 3))]
    parser, events = FrameParser(4096), []
    for one, two in zip(*parts, strict=True):
        events += parser.feed(one + two)
    assert parser.error is None
    assert [(channel, len(body)) for channel, _, _, body in events] == [(1, 10_000), (2, 10_000)]


def test_a_closed_channels_content_is_forgotten() -> None:
    parser = FrameParser()
    parser.feed(PUBLISH)
    parser.forget(1)
    assert [event[0] for event in parser.feed(method_frame(1, methods.ChannelOpenOk()))] == [1]


def test_properties_that_fill_a_frame_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="properties and headers take 200000 bytes"):
        add_content([], PUBLISH, 1, bytes(200_000), b"")


batches = st.lists(
    st.tuples(
        st.sampled_from(["", "x"]),
        st.sampled_from(["k", "k", "l"]),
        st.sampled_from([EMPTY, EMPTY, b"\x10\x00\x02"]),
        st.sampled_from([b"a", b"a", b"b", b"", b"long", b"z" * 9000]),
    ),
    max_size=6,
)


@few
@given(batches)
def test_a_batch_is_encoded_as_its_messages_are(rows: list[tuple[str, str, bytes, bytes]]) -> None:
    """Whether they are alike or not."""
    batch = [Outgoing(*row) for row in rows]
    channel = Channel(cast("Connection", None), 5, confirms=True, prefetch=0)
    out: list[bytes] = []
    for exchange, key, properties, body in batch:
        add_content(out, method_frame(5, BasicPublish(0, exchange, key, True)), 5, properties, body, 4096)
    assert channel._encoded(batch, True, 4096) == b"".join(out)
    assert channel._encoded(batch * 2, True, 4096) == b"".join(out * 2)
