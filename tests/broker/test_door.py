"""Nothing that a caller passes can hurt the broker: every argument of every verb, with every kind of wrong value.

Each call works, or raises an error of Remuda's that names the argument. Afterwards the broker still publishes, delivers
and acknowledges, and its directory opens again without a fault.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remuda.broker.opening import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import InvalidMessage, InvalidOption, RemudaError
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.notes import NOTE, Note
from remuda.model.operations.filters import MessageFilter
from remuda.model.queues.options import QueueOptions
from remuda.model.queues.routing import Binding
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State
from tests.conformance.threads_face import LoopThread


class Unshowable:
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Incomparable:
    """As an array of numbers: equal to nothing, and not even that."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of this is ambiguous")

    def __hash__(self) -> int:
        raise TypeError("unhashable")


class Text(str):
    """A text of an application's own, as NumPy has them."""

    __slots__ = ()


class Number(int):
    """A number of an application's own."""


class Content(bytes):
    """Bytes of an application's own."""


class Table(dict[str, str]):
    """A mapping of an application's own."""


class OwnMessage(Message, frozen=True):
    """A message of an application's own."""

    more: int = 5


class OwnBatch(Messages, frozen=True):
    """A batch of an application's own."""

    more: int = 5


class LikeBatch(Messages, frozen=True):
    """One that adds nothing."""


class OwnBinding(Binding, frozen=True):
    """A binding of an application's own."""

    more: object = object()


VALUES: dict[str, Callable[[], Any]] = {
    "own-text": lambda: Text("work"),
    "own-number": lambda: Number(1),
    "own-bytes": lambda: Content(b"work"),
    "own-mapping": lambda: Table(a=Text("b")),
    "own-message": lambda: OwnMessage("work", b""),
    "own-batch": lambda: OwnBatch([b"", b""], "work"),
    "like-batch": lambda: LikeBatch([b""], "work"),
    "own-binding": lambda: OwnBinding(queue="work"),
    "none": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "zero": lambda: 0,
    "one": lambda: 1,
    "negative": lambda: -1,
    "most-64-bits": lambda: 2**63 - 1,
    "huge": lambda: 10**30,
    "very-negative": lambda: -(10**30),
    "float": lambda: 0.5,
    "nan": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "text": lambda: "text",
    "surrogate": lambda: "a\ud800",
    "empty": lambda: "",
    "dot": lambda: ".",
    "long": lambda: "x" * 10_000,
    "nul": lambda: "a\x00b",
    "control": lambda: "a\x1b[2J\n",
    "comma": lambda: "a, b",
    "bytes": lambda: b"\x00\xff",
    "empty-list": list,
    "list": lambda: ["a", 1, None],
    "surrogates": lambda: ["a\ud800"],
    "pairs": lambda: [(0, 2**61), (2**61, 1)],
    "negative-pairs": lambda: [(-1, 1)],
    "tuple": lambda: ("", 5),
    "dict": lambda: {"a": 10**30},
    "headers": lambda: {"a\ud800": "b", 5: b"c"},
    "set": lambda: {1, "a"},
    "object": object,
    "error": lambda: ValueError("no"),
    "class": lambda: ValueError,
    "function": lambda: len,
    "generator": lambda: (each for each in ("a", None, 5)),
    "unshowable": Unshowable,
    "incomparable": Incomparable,
    "message": lambda: Message("work", b""),
    "binding": lambda: Binding(queue="work"),
    "options": lambda: QueueOptions(message_limit="5"),  # type: ignore[arg-type]
    "filter": lambda: MessageFilter(reason=5),  # type: ignore[arg-type]
}

WORDS = {
    "name": ("queue", "router", "topic", "consumer"),
    "router": ("router",),
    "chosen": ("filter", "states", "reason"),
    "settlement": ("answer",),
    "handler": ("notice handler",),
    "delivery": ("delivery",),
    "messages": ("publish takes messages", "row"),
    "body": ("body",),
    "bodies": ("body",),
    "topics": ("topic",),
    "id": ("id",),
    "ids": ("ids", "id"),
    "delay": ("delay",),
    "binding": ("binding",),
    "bindings": ("binding",),
    "options": ("option", "message_limit"),
    "message": ("message",),
    "exchange": ("exchange", "binding"),
}
"""What an error says of an argument, where that is not its name."""


class Door:
    """A broker with a queue, a router and a message, spoken to from threads or from coroutines."""

    def __init__(self, path: Path, loop: LoopThread | None) -> None:
        self.path = path
        self.loop = loop
        self.threads: EmbeddedBroker = open_broker(path, sync="os")
        self.port: Any = self.threads if loop is None else self.threads.aio
        self.threads.create_queue("work", type="pull", acknowledge_timeout="1h")
        self.threads.create_queue("push", type="push", acknowledge_timeout="1h")
        self.threads.create_queue("probe", type="pull")
        self.threads.create_router("fan", "distribute", [Binding(queue="work")])
        self.number = 0

    def run(self, result: Any) -> Any:
        return self.loop.run(result) if self.loop is not None and inspect.iscoroutine(result) else result

    def fresh(self, what: str) -> str:
        self.number += 1
        return f"{what}{self.number}"

    def delivery(self) -> Any:
        self.threads.publish(Messages(name="work", bodies=[b"1", b"2"]), queue="work")
        return self.run(self.port.pull("work", 2))

    def try_out(self, name: str, argument: str, value: Callable[[], Any], call: Callable[[Any], Any]) -> None:
        result: Any = None
        refusal: RemudaError | None = None
        try:
            result = self.run(call(value()))
        except RemudaError as error:
            refusal = error
        if isinstance(refusal, InvalidOption | InvalidMessage):
            words = (argument, *WORDS.get(argument, ()))
            assert any(word in str(refusal) for word in words), f"{argument!r} is not named in: {refusal}"
        assert len(str(refusal)) < 1_000, f"{name}: {argument} is refused at length: {str(refusal)[:200]}…"
        if hasattr(result, "receive"):
            self.run(result.close())
        assert self.threads.runtime.failure is None, f"{name} stopped the broker"

    def check_health(self) -> None:
        self.threads.publish(Message("probe.again", b"alive"))
        delivery = self.threads.pull("probe")
        assert delivery is not None
        assert delivery.bodies == [b"alive"]
        assert delivery.ack() == 1

    def check_directory(self) -> None:
        queues = {info.name for info in self.threads.queues()}
        self.threads.close()
        with open_broker(self.path, sync="os") as again:
            assert again.recovery.clean, again.recovery.describe()
            assert {info.name for info in again.queues()} == queues


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(params=["threads", "coroutines"])
def door(request: pytest.FixtureRequest, tmp_path: Path, loop: LoopThread) -> Door:
    return Door(tmp_path / "broker", loop if request.param == "coroutines" else None)


def two_rows(columns: dict[str, Any]) -> Messages:
    given: dict[str, Any] = {"name": "work", "bodies": [b"", b""], **columns}
    return Messages(**given)


Call = Callable[..., Any]
GOOD: dict[str, tuple[Call, dict[str, Any]]] = {
    "publish": (
        lambda d, messages, **rest: d.port.publish(messages, **rest),
        {"messages": Message("work", b""), "queue": "work", "unbound": None, "options": None, "timeout": 1,
         "raise_refusals": True},
    ),
    "route": (lambda d, **all: d.port.route(**all), {"router": "fan", "messages": Message("work", b""), "timeout": 1}),
    "subscribe": (
        lambda d, **all: d.port.subscribe(**all),
        {"queue": "work", "consumer": None, "batch": 1, "credit": None, "group": None, "options": None,
         "priority": 0},
    ),
    "channel": (
        lambda d, **all: d.port.channel(**{"name": d.fresh("channel"), **all}),
        {"topics": ["a"], "batch": 1, "options": None},
    ),
    "channel-name": (lambda d, **all: d.port.channel(**all), {"name": "c", "topics": ["a"]}),
    "pull": (
        lambda d, **all: d.port.pull(**all),
        {"queue": "work", "count": 1, "consumer": None, "newest": False, "clear_after": "none", "timeout": 0},
    ),
    "renew": (lambda d, **all: d.port.renew(**all), {"delivery": None}),
    "create_queue": (lambda d, name, options: d.port.create_queue(name, options), {"name": "q", "options": None}),
    "configure_queue": (lambda d, name, **all: d.port.configure_queue(name, **all), {"name": "work", "who": None}),
    "set_status": (
        lambda d, name, **all: d.port.set_status(name, **all), {"name": "work", "status": "running", "who": None}
    ),
    "remove_queue": (lambda d, name, **all: d.port.remove_queue(name, **all), {"name": "none", "who": None}),
    "queue": (lambda d, **all: d.port.queue(**all), {"name": "work"}),
    "create_router": (
        lambda d, **all: d.port.create_router(**all), {"name": "fan", "kind": "first", "bindings": ()},
    ),
    "bind": (lambda d, **all: d.port.bind(**all), {"router": "fan", "binding": Binding(queue="work")}),
    "unbind": (lambda d, **all: d.port.unbind(**all), {"router": "fan", "binding": Binding(queue="none")}),
    "remove_router": (lambda d, **all: d.port.remove_router(**all), {"name": "none"}),
    "clear": (
        lambda d, **all: d.port.clear(**all),
        {"name": "work", "lanes": "all", "offsets": None, "reason": None, "who": None},
    ),
    "parked": (lambda d, **all: d.port.parked(**all), {"name": "work", "chosen": None, "limit": 10}),
    "waiting": (lambda d, **all: d.port.waiting(**all), {"name": "work"}),
    "notes": (lambda d, **all: d.port.notes(**all), {"queue": "work", "offset": 0}),
    "publish note": (lambda d, **all: d.port.publish(Message(NOTE, b"", id="n"), note=Note(**all)),
                     {"queue": "none", "offset": 0, "number": 0, "lease": None}),
    "reprocess": (lambda d, **all: d.port.reprocess(**all), {"name": "work", "chosen": None, "who": None}),
    "forget": (lambda d, **all: d.port.forget(**all), {"name": "work", "chosen": None, "who": None}),
    "move": (lambda d, **all: d.port.move(**all), {"name": "work", "to": "other", "chosen": None, "who": None}),
    "message": (lambda d, **all: d.port.message(**all), {"message": 0}),
    "on_notice": (lambda d, **all: d.port.on_notice(**all), {"handler": len}),
    "off_notice": (lambda d, **all: d.port.off_notice(**all), {"handler": len}),
}  # fmt: skip
for _option in (field.name for field in msgspec.structs.fields(QueueOptions)):
    GOOD[f"create_queue {_option}"] = (lambda d, **all: d.port.create_queue(d.fresh("made"), **all), {_option: None})
    GOOD[f"create_queue QueueOptions.{_option}"] = (
        lambda d, **all: d.port.create_queue(d.fresh("made"), QueueOptions(**all)), {_option: None},
    )  # fmt: skip
    GOOD[f"configure_queue {_option}"] = (lambda d, **all: d.port.configure_queue("push", **all), {_option: None})
    GOOD[f"subscribe {_option}"] = (lambda d, **all: d.port.subscribe(d.fresh("sub"), options=all), {_option: None})
    GOOD[f"publish {_option}"] = (
        lambda d, **all: d.port.publish(Message("x", b""), queue=d.fresh("pub"), options=all), {_option: None},
    )  # fmt: skip
for _field in (field.name for field in msgspec.structs.fields(Message)):
    GOOD[f"publish Message.{_field}"] = (
        lambda d, **all: d.port.publish(Message(**{"name": "work", "body": b"", **all})), {_field: None},
    )  # fmt: skip
    GOOD[f"publish [Message.{_field}]"] = (
        lambda d, **all: d.port.publish([Message("work", b""), Message(**{"name": "work", "body": b"", **all})]),
        {_field: None},
    )
    GOOD[f"route Message.{_field}"] = (
        lambda d, **all: d.port.route("fan", Message(**{"name": "work", "body": b"", **all})), {_field: None},
    )  # fmt: skip
for _field in (field.name for field in msgspec.structs.fields(Messages)):
    GOOD[f"publish Messages.{_field}"] = (
        lambda d, **all: d.port.publish(Messages(**{"name": "work", "bodies": [b"", b""], **all})), {_field: None},
    )  # fmt: skip
    GOOD[f"publish Messages.[{_field}]"] = (
        lambda d, **all: d.port.publish(two_rows({name: [value] * 2 for name, value in all.items()})),
        {_field: None},
    )
for _field in (field.name for field in msgspec.structs.fields(Binding)):
    for _verb in ("bind", "unbind"):
        GOOD[f"{_verb} Binding.{_field}"] = (
            lambda d, verb=_verb, **all: getattr(d.port, verb)(
                "fan", Binding(**({"queue": "work", **all} if not {"topic", "exchange"} & set(all) else all))
            ),
            {_field: None},
        )
    GOOD[f"create_router headers Binding.{_field}"] = (
        lambda d, **all: d.port.create_router(d.fresh("heads"), "headers", [Binding(**{"queue": "work", **all})]),
        {_field: None},
    )
for _field in (field.name for field in msgspec.structs.fields(MessageFilter)):
    for _verb in ("parked", "reprocess", "forget"):
        GOOD[f"{_verb} MessageFilter.{_field}"] = (
            lambda d, verb=_verb, **all: getattr(d.port, verb)("work", MessageFilter(**all)), {_field: None},
        )  # fmt: skip
    GOOD[f"move MessageFilter.{_field}"] = (
        lambda d, **all: d.port.move("work", "other", MessageFilter(**all)), {_field: None},
    )  # fmt: skip


@pytest.mark.parametrize("verb", dict.fromkeys(name.split()[0] for name in GOOD))
def test_every_argument_of_every_verb(door: Door, verb: str) -> None:
    for name, (call, good) in GOOD.items():
        if name.split()[0] == verb:
            for argument in good:
                for value in VALUES.values():
                    door.try_out(name, argument, value, lambda given: call(door, **{**good, argument: given}))  # noqa: B023
                door.check_health()
    door.check_directory()


ANSWERS: dict[str, tuple[str, ...]] = {
    "ack": ("rows",),
    "nack": ("rows", "reason", "front", "counted"),
    "retry": ("rows", "after", "reason", "detail", "front"),
    "release": ("rows", "after", "reason", "front", "counted"),
    "invalid": ("rows", "reason"),
    "not_interested": ("rows", "reason"),
    "dead": ("rows", "reason", "to", "detail"),
    "begin": ("rows",),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_argument_of_every_answer(door: Door, answer: str) -> None:
    for argument in ANSWERS[answer]:
        for value in VALUES.values():
            delivery = door.delivery()
            assert delivery is not None
            door.try_out(answer, argument, value, lambda given: getattr(delivery, answer)(**{argument: given}))  # noqa: B023
            door.run(delivery.ack())
            door.threads.clear("work")
        door.check_health()
    door.check_directory()


@pytest.mark.parametrize("outcome", [Outcome.DEAD, Outcome.RETRY])
def test_every_field_of_an_answer_as_a_value(door: Door, outcome: Outcome) -> None:
    for field in ("settlement", "rows", "wait", *Settlement.__struct_fields__):
        for value in VALUES.values():
            delivery = door.delivery()

            def answer(given: Any, field: str = field, delivery: Any = delivery) -> Any:
                if field in ("rows", "wait"):
                    return delivery.answer(Settlement(outcome), **{field: given})
                return delivery.answer(
                    given if field == "settlement" else Settlement(**{"outcome": outcome, field: given})
                )

            door.try_out("answer", field, value, answer)
            door.run(delivery.ack())
            door.threads.clear("work")
        door.check_health()
    door.check_directory()


@pytest.mark.parametrize("verb", ["set_credit", "receive"])
def test_every_argument_of_a_subscription(door: Door, verb: str) -> None:
    argument = {"set_credit": "credit", "receive": "timeout"}[verb]
    for value in VALUES.values():
        subscription = door.run(door.port.subscribe("work"))
        door.threads.publish(Message("work", b"1"))
        door.try_out(verb, argument, value, lambda given: getattr(subscription, verb)(**{argument: given}))  # noqa: B023
        door.run(subscription.close())
        door.threads.clear("work")
    door.check_health()
    door.check_directory()


# What once stopped a broker, left a directory that could not be opened, or was taken for something else.


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with open_broker(tmp_path / "broker", sync="os") as broker:
        broker.create_queue("work", type="pull")
        yield broker
        broker.publish(Message("work", b"still"))
        assert broker.waiting("work")
    with open_broker(tmp_path / "broker") as again:
        assert again.recovery.clean


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        ("dead", {"reason": b"bytes"}),
        ("nack", {"reason": ValueError()}),
        ("dead", {"reason": "a\ud800"}),
        ("dead", {"to": ""}),
        ("retry", {"after": float("nan")}),
        ("ack", {"rows": [True]}),
        ("ack", {"rows": [-1]}),
        ("nack", {"front": "yes"}),
    ],
)
def test_q9_a_wrong_answer_is_refused_and_the_delivery_is_still_held(
    broker: EmbeddedBroker, answer: str, given: dict[str, Any]
) -> None:
    broker.publish(Message("work", b"1"))
    delivery = broker.pull("work")
    assert delivery is not None
    with pytest.raises(InvalidOption, match=next(iter(given))):
        getattr(delivery, answer)(**given)
    assert delivery.ack() == 1


@pytest.mark.parametrize("binding", [Binding(queue=5), Binding(topic=".x"), Binding(queue="a", key="#." * 5_000)])  # type: ignore[arg-type]
def test_q18_a_wrong_binding_is_refused(broker: EmbeddedBroker, binding: Binding) -> None:
    broker.create_router("fan", "topic")
    with pytest.raises(InvalidOption, match="binding"):
        broker.bind("fan", binding)
    with pytest.raises(InvalidOption, match="binding"):
        broker.create_router("other", "topic", [binding])
    assert broker.routers()["fan"][1] == ()


@pytest.mark.parametrize(
    "options",
    [{"message_limit": "5"}, {"expired_queue": "a\x00"}, {"dead_letter_queue": "x" * 300}, {"patterns": ["#." * 500]}],
    ids=lambda options: next(iter(options)),
)
def test_q13_wrong_options_are_refused_also_as_an_object(broker: EmbeddedBroker, options: dict[str, Any]) -> None:
    for given in (options, QueueOptions(**options)):
        with pytest.raises(InvalidOption, match=next(iter(options))):
            broker.create_queue("other", given)
    assert [info.name for info in broker.queues()] == ["work"]


@pytest.mark.parametrize("count", ["3", 0, True, 1.0])
def test_q16_a_wrong_count_is_refused(broker: EmbeddedBroker, count: Any) -> None:
    with pytest.raises(InvalidOption, match="count"):
        broker.pull("work", count)


@pytest.mark.parametrize("queue", ["", "a\x00", "x" * 256])
def test_q16_a_pull_makes_no_queue_that_cannot_be_named(broker: EmbeddedBroker, queue: str) -> None:
    with pytest.raises(InvalidOption, match="queue"):
        broker.pull(queue)
    assert [info.name for info in broker.queues()] == ["work"]


def test_m2_a_list_of_topics_routes_like_a_tuple(broker: EmbeddedBroker) -> None:
    broker.publish(Message("x", b"1", topics=["a.one", "b.two"]))  # type: ignore[arg-type]
    broker.publish([Message("x", b"2", topics=["a.one", "b.two"]), Message("x", b"3", topics=["a.one"])])  # type: ignore[arg-type]
    assert {info.name: info.normal for info in broker.queues()} == {"work": 0, "a": 3, "b": 2}


@pytest.mark.parametrize("unit", [1, 1_000], ids=["seconds", "milliseconds"])
@pytest.mark.parametrize("field", ["expires", "due"])
def test_q5_times_in_another_unit_are_refused(broker: EmbeddedBroker, field: str, unit: int) -> None:
    late = msgspec.structs.replace(Message("work", b"1"), **{field: int(time.time() * unit)})
    with pytest.raises(InvalidMessage, match=f"{field}=.*microseconds since 1970"):
        broker.publish(late)
    with pytest.raises(InvalidMessage, match=f"row 1: {field}="):
        broker.publish([Message("work", b"0"), late])


def test_q4_a_wrong_timeout_is_refused_before_anything_is_stored(broker: EmbeddedBroker) -> None:
    for timeout in ("soon", -1, object()):
        with pytest.raises(InvalidOption, match="timeout"):
            broker.publish(Message("work", b"1"), timeout=timeout)  # type: ignore[arg-type]
    assert broker.waiting("work") == []


def test_the_name_of_a_queue_may_be_an_enums_member(broker: EmbeddedBroker) -> None:
    class Name(str, Enum):  # noqa: UP042 (this is the kind whose `str` is not its text)
        WORK = "work"

    broker.publish(Message("x", b"1"), queue=Name.WORK)
    assert [info.name for info in broker.queues()] == ["work"]
    assert len(broker.waiting("work")) == 1


class DerivedText(str):
    """As NumPy's texts are, or those that a template engine calls safe."""


class DerivedBytes(bytes): ...


def test_texts_of_derived_types_are_texts() -> None:
    """M2: wherever one may stand. What the log cannot write would stop the broker."""
    text = DerivedText("derived")
    with open_broker("memory://") as broker:
        for field in ("id", "object", "key", "mime_type", "name"):
            broker.publish(msgspec.structs.replace(Message("x", b""), **{field: text}))
        broker.publish([Message("x", b"", id=DerivedText("one")), Message(text, b"", topics=(text,))])
        broker.publish(Messages(name=[text, "x"], bodies=[b"", b""], ids=[DerivedText("two"), "three"]))
        broker.create_router("r", "headers", [Binding(queue=text, arguments={text: DerivedBytes(b"x"), "y": text})])
        broker.route("r", Message("x", b"", headers={text: text}))
        for id in ("derived", "one", "two"):
            assert type(broker.message(id).message.id) is str


def test_m6_a_message_that_is_named_twice_moves_once(broker: EmbeddedBroker) -> None:
    broker.create_queue("orders", type="pull")
    for _ in range(3):
        broker.publish(Message("orders", b"body"))
    runs = ((1, 2), (1, 1), (2, 1))
    assert broker.clear("orders", offsets=runs) == 2
    assert broker.queue("orders").counts[State.DEAD] == 2
    assert broker.reprocess("orders", MessageFilter(offsets=runs)) == 2
    assert broker.queue("orders").counts[State.QUEUED] == 3 + 2
