"""M1: a body is the user's bytes; Python values become bytes and come back as the handler's annotation says."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from remuda import Bus, Message
from remuda.bus.publishing import bodies
from remuda.bus.publishing.bodies import Undecodable
from remuda.model.errors import InvalidMessage, InvalidOption


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Item:
    name: str
    price: Decimal


class Struct(msgspec.Struct):
    number: int
    items: list[Item]
    colour: Colour = Colour.RED


class Model(pydantic.BaseModel):
    id: uuid.UUID
    when: datetime
    prices: dict[str, Decimal] = {}


class Outer(pydantic.BaseModel):
    inner: Model


@dataclasses.dataclass
class Mixed:
    model: Model
    more: list[Model]


ID = uuid.UUID(int=7)
WHEN = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
MODEL = Model(id=ID, when=WHEN, prices={"a": Decimal("1.10")})

VALUES: list[tuple[Any, Any]] = [
    (None, Any),
    (5, int),
    (1.5, float),
    ("text", str),
    ([1, 2], list[int]),
    ({"a": [1, None]}, dict[str, Any]),
    ({"a": 1}, Any),
    (Item("pear", Decimal("0.30")), Item),
    (Struct(1, [Item("pear", Decimal(3))]), Struct),
    (MODEL, Model),
    (Outer(inner=MODEL), Outer),
    ([MODEL, MODEL], list[Model]),
    (Mixed(MODEL, [MODEL]), Mixed),
    (MODEL, Model | None),
    (None, Model | None),
    (WHEN, datetime),
    (ID, uuid.UUID),
    (Colour.RED, Colour),
    ((1, "a"), tuple[int, str]),
    ({1, 2}, set[int]),
]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize(("value", "wanted"), VALUES)
def test_values_come_back_as_they_were(encoding: str, value: Any, wanted: Any) -> None:
    """M1"""
    body, mime_type = bodies.encode(value, encoding)
    assert mime_type == {"json": "application/json", "msgpack": "application/msgpack"}[encoding]
    assert bodies.decode(body, mime_type, wanted) == value


@pytest.mark.parametrize("encoding", ["json", "msgpack", "raw"])
def test_bytes_are_never_wrapped_or_changed(encoding: str) -> None:
    """M1"""
    seen: list[tuple[bytes, str]] = []
    bus = Bus(encoding=encoding)

    @bus.subscribe("x")
    def handle(body: bytes, message: Message) -> None:
        seen.append((body, message.mime_type))

    with bus.testing() as test:
        test.publish("x", b"\x00\xff{")
        test.publish("x", bytearray(b"array"))
        test.publish("x", b"<a/>", mime_type="application/xml")
        test.run()
    assert seen == [
        (b"\x00\xff{", "application/octet-stream"),
        (b"array", "application/octet-stream"),
        (b"<a/>", "application/xml"),
    ]


def test_json_by_default_and_exactly_what_one_would_write() -> None:
    """M1"""
    bus = Bus()
    with bus.testing() as test:
        message = test.message(test.publish("x", {"order": 1, "name": "ä"})).message
        assert (message.body, message.mime_type) == ('{"order":1,"name":"ä"}'.encode(), "application/json")
        assert message.headers["cap-msg-type"] == "dict"
        typed = test.message(test.publish("x", MODEL)).message
        assert typed.headers["cap-msg-type"] == f"{__name__}.Model"


def test_a_handler_gets_its_annotated_type() -> None:
    """M1: whatever the publisher had."""
    seen: list[Any] = []
    bus = Bus()

    @bus.subscribe("x", queue="model")
    def model(body: Model) -> None:
        seen.append(body)

    @bus.subscribe("x", queue="plain")
    def plain(body: dict[str, Any]) -> None:
        seen.append(sorted(body))

    @bus.subscribe("x", queue="nothing said")
    def nothing(body) -> None:  # type: ignore[no-untyped-def]
        seen.append(type(body))

    with bus.testing() as test:
        test.publish("x", {"id": str(ID), "when": WHEN.isoformat(), "prices": {"a": "1.10"}})
        test.run()
    assert seen == [MODEL, ["id", "prices", "when"], dict]


Count = Annotated[int, msgspec.Meta(gt=5)]


@pytest.mark.parametrize("wanted", [Count, list[Count], Annotated[list[int], msgspec.Meta(max_length=0)]], ids=str)
def test_a_constraint_of_the_annotation_holds(wanted: Any) -> None:
    """M1, B13: `Annotated[int, msgspec.Meta(gt=5)]` is not just any int."""
    bus, got = Bus("memory://"), []

    def handle(body: Any) -> None:
        got.append(body)

    handle.__annotations__["body"] = wanted
    bus.subscribe("count", queue="count")(handle)
    with bus.testing() as test:
        id = test.publish("count", 3 if wanted is Count else [3])
        test.run()
        assert test.message(id).queues[0].state == "I"
        assert got == []


def test_what_an_annotation_only_remarks_changes_nothing() -> None:
    """M1."""
    bus, got = Bus("memory://"), []

    @bus.subscribe("remarked", queue="remarked")
    def handle(
        body: Annotated[Model, msgspec.Meta(description="of a model")], message: Annotated[Message, "the whole"]
    ) -> None:
        got.append((body.id, message.name))

    with bus.testing() as test:
        test.publish("remarked", Model(id=uuid.UUID(int=7), when=datetime(2026, 1, 1, tzinfo=UTC)))
        test.run()
        assert got == [(uuid.UUID(int=7), "remarked")]


@pytest.mark.parametrize(
    ("body", "mime_type", "wanted", "value"),
    [
        (b"text", "text/plain; charset=utf-8", str, "text"),
        (b"text", "text/plain", Any, "text"),
        (b"text", "application/octet-stream", str, "text"),
        (b"\x00", "application/octet-stream", Any, b"\x00"),
        (b"\x89PNG", "image/png", Any, b"\x89PNG"),
        (b'{"a":1}', "application/vnd.shop+json", dict[str, int], {"a": 1}),
        (b'{"a":1}', "application/vnd.shop+json", Any, {"a": 1}),
        (b'"quoted"', "application/json", str, "quoted"),
        (b"5", "application/octet-stream", int, 5),
        (b"\x05", "application/x-msgpack", int, 5),
        (b"text", "text/plain", Annotated[str, msgspec.Meta(min_length=4)], "text"),
        (b"\x00", "application/octet-stream", Annotated[bytes, msgspec.Meta(max_length=1)], b"\x00"),
        (b"\xa1a", "application/x-msgpack", Annotated[str, msgspec.Meta(max_length=1)], "a"),
        (b"5", "APPLICATION/JSON", int, 5),
        (b"5", "", int, 5),
    ],
)
def test_the_mime_type_says_what_the_bytes_are(body: bytes, mime_type: str, wanted: Any, value: Any) -> None:
    """M1"""
    assert bodies.decode(body, mime_type, wanted) == value


@pytest.mark.parametrize(
    ("body", "mime_type", "wanted"),
    [
        (b"tex", "text/plain", Annotated[str, msgspec.Meta(min_length=4)]),
        (b"\x00\x00", "application/octet-stream", Annotated[bytes, msgspec.Meta(max_length=1)]),
        (b"{", "application/json", Any),
        (b'"x"', "application/json", int),
        (b"\xff", "text/plain", str),
        (b"{}", "application/json", Model),
        (b"[{}]", "application/json", list[Model]),
        (b"\xc1", "application/msgpack", Any),
        (b"[" * 100_000, "application/json", Any),
    ],
)
def test_what_cannot_be_decoded_says_why(body: bytes, mime_type: str, wanted: Any) -> None:
    """B13, M1"""
    with pytest.raises(Undecodable, match=rf"{mime_type} body of {len(body)} bytes is no"):
        bodies.decode(body, mime_type, wanted)


@pytest.mark.parametrize(
    ("value", "encoding"), [(object(), "json"), ({"a": object()}, "msgpack"), ("text", "raw"), (2**70, "msgpack")]
)
def test_what_cannot_be_encoded_is_refused_and_nothing_stored(value: Any, encoding: str) -> None:
    """M1"""
    bus = Bus(encoding=encoding)
    with bus.testing():
        with pytest.raises(InvalidMessage, match="nothing was stored"):
            bus.publish("x", value)
        assert all(info.size == 0 for info in bus.broker.queues())


def test_an_unknown_encoding_is_refused_at_start() -> None:
    """M1"""
    with pytest.raises(InvalidOption, match="json, msgpack, raw"):
        Bus(encoding="pickle")


def test_msgpack_end_to_end() -> None:
    """M1"""
    seen: list[Any] = []
    bus = Bus(encoding="msgpack")

    @bus.subscribe("x")
    def handle(body: Struct) -> Struct:
        return body

    @bus.subscribe("answer")
    def answer(body: Struct, message: Message) -> None:
        seen.append((body, message.mime_type))

    value = Struct(1, [Item("pear", Decimal(1))])
    with bus.testing() as test:
        test.publish("x", value, callback="answer")
        test.run()
    assert seen == [(value, "application/msgpack")]


class Text(str): ...


class Number(int): ...


class Measure(float): ...


class Index:
    """A whole number that is not derived from `int`, as NumPy's are."""

    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_what_is_derived_from_texts_and_numbers_is_written_as_such(encoding: str) -> None:
    """M1"""
    plain: list[Any] = ["a", 7, 1.5, 3, {"b": [2]}]
    derived: list[Any] = [Text("a"), Number(7), Measure(1.5), Index(), {Text("b"): [Number(2)]}]
    assert [bodies.encode(one, encoding) for one in derived] == [bodies.encode(one, encoding) for one in plain]
    with pytest.raises(InvalidMessage, match="NaN"):
        bodies.encode(Measure("nan"))


def test_a_message_may_have_an_id_of_a_derived_type() -> None:
    """M4, B20"""
    with Bus() as bus:
        assert bus.publish("x", 1, id=Text("order-1")) == "order-1"
        assert bus.publish("x", 1, unique=Text("order-2")) == "order-2"
        assert bus.status("order-1").word == "waiting"
