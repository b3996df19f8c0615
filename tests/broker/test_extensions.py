"""Q20: a strategy, a store, a synchronizer and a delivery handler from outside the package."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remuda.broker.embedded.delivering.effect_dispatcher import EffectDispatcher
from remuda.broker.embedded.extensions import Extensions, window_store
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.opening import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.core.effects import Effects
from remuda.core.extensions import Assignment, QueueView
from remuda.core.queues.strategies import by_type
from remuda.model.errors import Refused, RemudaError, StorageError
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.queues.options import QueueOptions
from remuda.model.records import Appended, Events, Record
from remuda.model.settlement import Outcome
from tests.broker.kit import ManualClock
from tests.conformance.kit import (
    MOMENT,
    bodies_of,
    eventually,
    numbered,
    pulled,
    received,
    state_of,
    view,
    waiting_bodies,
)
from tests.conformance.threads_face import LoopThread


class LastComerFirst:
    """A strategy: whoever came last gets everything, in pairs."""

    def next(self, queue: QueueView) -> Assignment | None:
        free = [member for member in queue.members if not member.unanswered]
        if not free or queue.waiting < 2:
            return None
        return Assignment((free[-1].name,), 2)


def test_q20_a_strategy_of_ones_own() -> None:
    extensions = Extensions(
        strategy_for=lambda queue, options: LastComerFirst() if queue == "orders" else by_type(queue, options)
    )
    with open_broker("memory://", extensions=extensions) as broker:
        broker.create_queue("orders")
        first, last = broker.subscribe("orders"), broker.subscribe("orders")
        broker.publish(numbered(3))
        assert received(last).bodies == [b"0", b"1"]
        assert first.receive(MOMENT) is None
        broker.publish(numbered(1, start=3))
        assert received(first).bodies == [b"2", b"3"]
        broker.publish(numbered(1, "other"))
        assert bodies_of(broker.subscribe("other"), 1) == [b"0"]


class Shelf:
    """A store: keeps everything by offset, and says what it was asked."""

    def __init__(self) -> None:
        self.kept: dict[int, Messages] = {}
        self.discarded: list[tuple[int, int]] = []
        self.served = 0

    def put(self, first: int, messages: Messages) -> None:
        for row in range(len(messages)):
            self.kept[first + row] = messages.slice(row, row + 1)

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        offsets = [offset for first, count in runs for offset in range(first, first + count)]
        if not all(offset in self.kept for offset in offsets):
            return None
        self.served += len(offsets)
        return Messages.of(self.kept[offset][0] for offset in offsets)

    def discard(self, first: int, count: int) -> None:
        self.discarded.append((first, count))
        for offset in range(first, first + count):
            self.kept.pop(offset, None)


def test_q20_a_store_of_ones_own() -> None:
    shelves: dict[str, Shelf] = {}

    def store_for(queue: str, options: QueueOptions) -> Shelf:
        return shelves.setdefault(queue, Shelf())

    with open_broker("memory://", extensions=Extensions(store_for=store_for)) as broker:
        broker.create_queue("orders", type="pull")
        ids = broker.publish(numbered(4)).ids
        assert [message.id for message in pulled(broker, count=2)] == ids[:2]
        assert broker.clear("orders") == 2
        shelf = shelves["orders"]
        assert shelf.served == 2
        assert shelf.discarded == [(2, 2)]


def test_q20_what_a_store_does_not_have_comes_from_the_log() -> None:
    class Sieve(Shelf):
        def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
            return None

    with open_broker("memory://", extensions=Extensions(store_for=lambda queue, options: Sieve())) as broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(3))
        assert waiting_bodies(broker) == [b"0", b"1", b"2"]
    assert window_store("orders", QueueOptions()).take([(0, 1)]) is None


class Moody(Shelf):
    """A store that misbehaves at one point."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self._point = point

    def put(self, first: int, messages: Messages) -> None:
        if self._point == "put":
            raise RuntimeError("the shelf broke")
        super().put(first, messages)
        if self._point == "changes":
            messages.bodies[:] = [b"scribbled on"] * len(messages.bodies)

    def take(self, runs: Sequence[tuple[int, int]]) -> Any:
        if self._point == "take":
            raise RuntimeError("the shelf broke")
        taken = super().take(runs)
        match self._point:
            case "other":
                return Messages.of([Message("orders", b"another's", id="1")])
            case "more" if taken is not None:
                return Messages.of([*taken, *taken])
            case "nonsense":
                return 42
        return taken

    def discard(self, first: int, count: int) -> None:
        if self._point == "discard":
            raise RuntimeError("the shelf broke")


@pytest.mark.parametrize("point", ["put", "take", "discard", "other", "more", "nonsense", "changes", "made"])
def test_q20_a_stores_mistake_costs_nobody_anything(point: str) -> None:
    def store_for(queue: str, options: QueueOptions) -> Moody:
        if point == "made":
            raise RuntimeError("no shelf today")
        return Moody(point)

    with open_broker("memory://", extensions=Extensions(store_for=store_for)) as broker:
        for queue in ("orders", "others"):
            broker.create_queue(queue, type="pull")
        broker.publish(Message("x", b"cleared"), queue="orders")
        broker.clear("orders")
        broker.publish([Message("x", b"%d" % number, topics=("orders", "others")) for number in range(3)])
        for queue in ("orders", "others"):
            for number in range(3):
                assert pulled(broker, queue).bodies == [b"%d" % number]


def test_q20_parts_that_cannot_be_made_cost_their_queue_alone() -> None:
    def broken(queue: str, options: QueueOptions) -> Any:
        if queue == "orders":
            raise RuntimeError("no part today")
        return None

    extensions = Extensions(strategy_for=lambda *at: broken(*at) or by_type(*at), handler_for=broken)
    with open_broker("memory://", extensions=extensions) as broker:
        for queue in ("orders", "others"):
            broker.create_queue(queue)
        with pytest.raises(Refused, match="no part today"):
            broker.publish(numbered(1))
        broker.publish(numbered(1, "others"))
        assert bodies_of(broker.subscribe("others"), 1) == [b"0"]


class Mirror:
    """A synchronizer: has every record before it is confirmed; can refuse."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.refuses: Exception | None = None

    def replicate(self, records: Sequence[Record]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.records += records

    def bodies(self) -> list[bytes]:
        return [body for record in self.records if isinstance(record, Appended) for body in record.messages.bodies]

    def states(self) -> list[str]:
        return [row.state.value for record in self.records if isinstance(record, Events) for row in record.rows]


def test_q20_a_synchronizer_of_ones_own() -> None:
    mirror = Mirror()
    with open_broker("memory://", extensions=Extensions(synchronizer=mirror)) as broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(2))
        assert mirror.bodies() == [b"0", b"1"]
        pulled(broker, count=2).ack()
        assert mirror.states() == ["F", "S", "X"]


@pytest.mark.parametrize("error", [RemudaError, ValueError])
def test_q20_a_synchronizer_that_fails_costs_a_refusal_until_it_works_again(
    error: type[Exception], tmp_path: Path
) -> None:
    mirror = Mirror()
    with open_broker(tmp_path / "d", sync="os", extensions=Extensions(synchronizer=mirror)) as broker:
        broker.create_queue("orders", type="pull")
        mirror.refuses = error("the other side does not answer")
        with pytest.raises(StorageError, match=r"the other side does not answer.* not confirmed"):
            broker.publish(numbered(1))
        with pytest.raises(StorageError, match="nothing was changed"):
            broker.publish(numbered(1))
        mirror.refuses = None
        eventually(lambda: mirror.bodies() == [b"0"])
        eventually(lambda: broker.runtime.trouble is None)
        broker.publish(Message("orders", b"1"))
        assert mirror.bodies() == [b"0", b"1"]
        assert waiting_bodies(broker) == [b"0", b"1"]


class Gatekeeper:
    """A delivery handler: decides at every point, and writes down that it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def received(self, queue: str, message: Message) -> str | None:
        self.asked.append("received")
        return "spam" if message.body == b"spam" else None

    def sending(self, queue: str, offset: int, consumers: tuple[str, ...]) -> str | None:
        self.asked.append("sending")
        return "withheld" if offset == 1 else None

    def sent(self, queue: str, offset: int, consumers: tuple[str, ...]) -> None:
        self.asked.append(f"sent to {', '.join(consumers)}")

    def answered(self, queue: str, offset: int, answer: Outcome) -> Outcome:
        self.asked.append(f"answered {answer.value}")
        return Outcome.ACK if answer is Outcome.NOT_INTERESTED else answer

    def timed_out(self, queue: str, offset: int) -> Outcome:
        self.asked.append("timed out")
        return Outcome.INVALID


@pytest.fixture
def gatekeeper() -> Gatekeeper:
    return Gatekeeper()


@pytest.fixture
def guarded(gatekeeper: Gatekeeper) -> EmbeddedBroker:
    handlers = Extensions(handler_for=lambda queue, options: gatekeeper if queue == "orders" else None)
    broker = open_broker("memory://", extensions=handlers)
    broker.create_queue("orders", type="pull", acknowledge_timeout="30ms")
    return broker


def test_q20_a_handler_may_refuse_what_is_received(guarded: EmbeddedBroker, gatekeeper: Gatekeeper) -> None:
    with guarded as broker:
        with pytest.raises(Refused, match="queue 'orders' refused the message: spam"):
            broker.publish(Message("orders", b"spam"))
        broker.publish(Message("other", b"spam"))
        assert gatekeeper.asked == ["received"]
        assert broker.queue("orders").size == 0


def test_q20_a_handler_may_withhold_what_is_to_be_sent(guarded: EmbeddedBroker, gatekeeper: Gatekeeper) -> None:
    with guarded as broker:
        ids = broker.publish(numbered(3)).ids
        assert pulled(broker, count=3, consumer="anna").bodies == [b"0", b"2"]
        assert (state_of(broker, ids[1]), view(broker, ids[1]).reason) == ("E", "withheld")
        assert gatekeeper.asked.count("sent to anna") == 2


def test_q20_a_handler_may_change_an_answer(guarded: EmbeddedBroker, gatekeeper: Gatekeeper) -> None:
    with guarded as broker:
        receipt = broker.publish(numbered(1))
        assert pulled(broker).not_interested() == 1
        assert state_of(broker, receipt.id) == "X"
        assert gatekeeper.asked[-1] == "answered not-interested"


def test_q20_a_handler_decides_over_missing_answers(guarded: EmbeddedBroker, gatekeeper: Gatekeeper) -> None:
    with guarded as broker:
        receipt = broker.publish(numbered(1))
        pulled(broker)
        eventually(lambda: broker.queue("orders").invalid == 1)
        assert (state_of(broker, receipt.id), view(broker, receipt.id).reason) == ("I", "no answer in time")
        assert gatekeeper.asked[-1] == "timed out"


class Careless:
    """A delivery handler that does what it is told, at one point of the way."""

    def __init__(self, point: str, act: Callable[[], Any]) -> None:
        self.point = point
        self.act = act
        self.told: list[tuple[str, Outcome]] = []

    def received(self, queue: str, message: Message) -> Any:
        return self.act() if self.point == "received" else None

    def sending(self, queue: str, offset: int, consumers: tuple[str, ...]) -> Any:
        return self.act() if self.point == "sending" and offset == 0 else None

    def sent(self, queue: str, offset: int, consumers: tuple[str, ...]) -> Any:
        return self.act() if self.point == "sent" else None

    def answered(self, queue: str, offset: int, outcome: Outcome) -> Any:
        self.told.append((queue, outcome))
        return self.act() if self.point == "answered" else outcome

    def timed_out(self, queue: str, offset: int) -> Any:
        return self.act() if self.point == "timed_out" else Outcome.NACK


def careless(point: str, act: Callable[[], Any]) -> tuple[EmbeddedBroker, Careless]:
    handler = Careless(point, act)
    broker = open_broker("memory://", extensions=Extensions(handler_for=lambda queue, options: handler))
    return broker, handler


POINTS = ["received", "sending", "sent", "answered", "timed_out"]


def raising() -> Any:
    raise ValueError("a mistake")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("how", ["raises", "answers nonsense", "calls back"])
def test_q20_a_handlers_mistake_costs_its_message_alone(point: str, how: str) -> None:
    holder: list[EmbeddedBroker] = []
    acts: dict[str, Callable[[], Any]] = {
        "raises": raising,
        "answers nonsense": lambda: 5,
        "calls back": lambda: holder[0].message(0),
    }
    broker, handler = careless(point, acts[how])
    holder.append(broker)
    with broker:
        broker.create_queue("orders", type="pull", acknowledge_timeout="20ms" if point == "timed_out" else "1m")
        if point == "received":
            with pytest.raises(Refused, match="received"):
                broker.publish(numbered(1))
        else:
            broker.publish(numbered(2))
            first = pulled(broker)
            if point == "sending":
                assert first.bodies == [b"1"]
                assert "sending" in broker.parked("orders")[0].reason
            if point == "timed_out":
                eventually(lambda: broker.queue("orders").waiting == 2)
            else:
                assert first.ack() == 1
        handler.point = "none"
        broker.clear("orders")
        broker.publish(numbered(1, start=7))
        assert waiting_bodies(broker) == [b"7"]


def test_q20_a_withheld_message_does_not_make_a_pull_miss_the_next() -> None:
    broker, _ = careless("sending", lambda: "withheld")
    with broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(2))
        assert pulled(broker).bodies == [b"1"]


def test_q20_m8_a_handler_hears_each_of_several_confirmations() -> None:
    broker, handler = careless("none", raising)
    with broker:
        broker.create_queue("orders", type="push", confirmations=2)
        anna, bert = broker.subscribe("orders"), broker.subscribe("orders")
        broker.publish(numbered(1))
        received(anna).ack()
        received(bert).ack()
        assert handler.told == [("orders", Outcome.ACK)] * 2


class Hopeless:
    """A strategy that answers nonsense."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def next(self, queue: QueueView) -> Any:
        return self._answer()


@pytest.mark.parametrize(
    "answer",
    [
        raising,
        lambda: Assignment(("anna",), 0),
        lambda: Assignment((), 1),
        lambda: Assignment(("nobody",), 1),
        lambda: 5,
    ],
)
def test_q20_a_strategy_that_answers_nonsense_gives_way_to_the_usual_one(answer: Callable[[], Any]) -> None:
    extensions = Extensions(strategy_for=lambda queue, options: Hopeless(answer))
    with open_broker("memory://", extensions=extensions) as broker:
        broker.create_queue("orders", type="round-robin")
        with broker.subscribe("orders", consumer="anna") as subscription:
            broker.publish(numbered(2))
            assert bodies_of(subscription, 2) == [b"0", b"1"]


@pytest.mark.source
@pytest.mark.parametrize("coroutines", [False, True])
def test_q16_a_pull_that_times_out_while_its_delivery_is_on_the_way_gets_it(
    coroutines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery is decided and written, but lies in the inbox only after the pull has stopped waiting."""
    let_out, on_the_way, timed_out = EffectDispatcher.let_out, threading.Event(), threading.Event()
    cancel_pull = Runtime.cancel_pull

    def late(recipients: EffectDispatcher, effects: Effects) -> None:
        if effects.dispatches:
            on_the_way.set()
            assert timed_out.wait(60)
        let_out(recipients, effects)

    def cancel(runtime: Runtime, queue: str, tag: int) -> bool:
        assert on_the_way.wait(60)
        try:
            return cancel_pull(runtime, queue, tag)
        finally:
            timed_out.set()

    monkeypatch.setattr(EffectDispatcher, "let_out", late)
    monkeypatch.setattr(Runtime, "cancel_pull", cancel)
    # By the broker's clock the time is not up, or it would end the pull itself where this thread is slow.
    with open_broker("memory://", clock=ManualClock()) as broker, ThreadPoolExecutor(1) as pool:
        # With something to watch, the delivery takes the long way, over the outbox.
        broker.create_queue("orders", type="pull", commit_when="sent")
        broker.runtime.flush()  # a pull would wait for the thread that writes it: the one that hands out late
        loop = LoopThread()
        ask: Callable[[], Any] = lambda: broker.pull("orders", timeout="100ms")  # noqa: E731
        if coroutines:
            ask = lambda: loop.run(broker.aio.pull("orders", timeout="100ms"))  # noqa: E731
        asked = pool.submit(ask)
        eventually(lambda: broker.runtime.engine.core.queues["orders"].waiters)
        broker.publish(Message("orders", b"0"))
        delivery = asked.result(60)
        loop.close()
        assert delivery is not None
        assert delivery.bodies == [b"0"]
