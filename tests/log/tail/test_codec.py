"""M2: every field of a message comes back from the log as it went in."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.log.tail import record_codec
from remuda.model.errors import InvalidMessage, UnsupportedFormat
from remuda.model.message import NO_HEADERS, Message
from remuda.model.messages import Messages
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.records import CREATED, Appended, Event, Events, ExchangeChange, Record
from remuda.model.state import State
from tests.log.samples import change, light, message_rows, rich_messages


def round_trip(record: Appended, *, bodies: bool = True) -> Appended:
    kind, payload = record_codec.encode(record, record.first, 9)
    offset, position, decoded = record_codec.decode(kind, payload, bodies=bodies)
    assert (offset, position) == (record.first, 9)
    assert isinstance(decoded, Appended)
    assert record_codec.message_range(payload) == range(record.first, record.first + len(record))
    return decoded


def test_m2_every_column_comes_back() -> None:
    record = Appended(7, 5_000, rich_messages(20), [("a",), ()] * 10, [None, b"d"] * 10)
    assert message_rows([round_trip(record)]) == message_rows([record])
    assert message_rows([round_trip(record, bodies=False)]) == light(message_rows([record]))


def test_shared_columns_stay_shared_and_cost_little() -> None:
    messages = Messages(bodies=[b"x" * 200] * 1000, name="fruit", ids=range(1024, 1001 * 1024, 1024))
    record = Appended(0, 77, messages, ("fruit",))
    _, payload = record_codec.encode(record, 0, 0)
    assert len(payload) < 1000 * 203 + 100
    decoded = round_trip(record)
    assert decoded.messages.name == "fruit"
    assert decoded.messages.ids == messages.ids
    assert decoded.messages.headers == NO_HEADERS
    assert decoded.messages.created == 77
    assert decoded.queues == ("fruit",)


def test_one_message_costs_few_bytes_beside_its_body() -> None:
    record = Appended(10**9, 10**15, Messages(bodies=[b""], name="n", ids=range(1 << 60, (1 << 60) + 1)), ("q",))
    assert len(record_codec.encode(record, 0, 10**9)[1]) < 70


def test_events_and_changes_come_back() -> None:
    records: list[Record] = [
        Events(
            3,
            55,
            [
                Event("q", State.RETRY, 7, 2, "c", 3, "why", 99, True, "ann", 10, None, "later"),
                Event("r", State.DEAD, 1),
            ],
        ),
        change(),
        ExchangeChange(CREATED, "r", 5, ExchangeKind.FIRST, (Binding("q"), Binding(None, "t", 4))),
    ]
    for record in records:
        kind, payload = record_codec.encode(record, 9, 3)
        assert record_codec.decode(kind, payload) == (9, 3, record)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
times = st.none() | st.integers(0, 2**62)
messages_strategy = st.builds(
    Message,
    name=texts, body=st.binary(max_size=20), id=texts, topics=st.lists(texts, max_size=3).map(tuple),
    object=st.none() | texts, key=st.none() | texts, timestamp=times, mime_type=texts,
    headers=st.dictionaries(texts, texts, max_size=2), expires=times, due=times,
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(messages_strategy, min_size=1, max_size=5), st.data())
def test_m2_any_messages_come_back(rows: list[Message], data: st.DataObject) -> None:
    queues = data.draw(st.lists(st.lists(texts, max_size=2).map(tuple), min_size=len(rows), max_size=len(rows)))
    record = Appended(3, 4, Messages.of(rows), queues if data.draw(st.booleans()) else queues[0])
    assert message_rows([round_trip(record)]) == message_rows([record])


@settings(deadline=None)
@given(st.integers(0, 255), st.binary(max_size=60))
def test_l3_no_payload_raises_anything_but_damaged(kind: int, payload: bytes) -> None:
    dropped = kind in (1, 2, 4)
    for bodies in (True, False):
        with pytest.raises(UnsupportedFormat) if dropped else contextlib.suppress(record_codec.Damaged):
            record_codec.decode(kind, payload, bodies=bodies)


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(1, 255))
def test_l3_no_flipped_payload_raises_anything_but_damaged(at: int, flip: int) -> None:
    kind, payload = record_codec.encode(Appended(7, 5_000, rich_messages(4), ("a",)), 7, 0)
    broken = bytearray(payload)
    broken[at % len(broken)] ^= flip
    for bodies in (True, False):
        with contextlib.suppress(record_codec.Damaged):
            record_codec.decode(kind, bytes(broken), bodies=bodies)


@pytest.mark.parametrize(
    "wrong",
    [
        Messages(bodies=[b""], name="n", key=5),  # type: ignore[arg-type]
        Messages(bodies=[b""], name="n", headers={"a": 1}),  # type: ignore[dict-item]
        Messages(bodies=[b""], name="n", expires="soon"),  # type: ignore[arg-type]
        Messages(bodies=[b""], name="\ud800"),
        Messages(bodies=[b""], name="n", ids=["\ud800"]),
        Messages(bodies=[b""], name="n", timestamp=1 << 70),
        Messages(bodies=[b""], name="n", due=1 << 63),
    ],
)
def test_a_value_that_could_not_be_read_back_is_refused(wrong: Messages) -> None:
    with pytest.raises(InvalidMessage, match="nothing was stored"):
        wrong.checked()


def test_check_passes_what_can_be_stored() -> None:
    rich_messages(10).checked()
