"""Where a message goes: roots, channels, the compacter, routers (T1, T2, T3, Q18)."""

from __future__ import annotations

import pytest

from remuda.core.compacter import Compacter, history_key
from remuda.core.distributor import Distributor
from remuda.model.errors import Conflict, InvalidOption, NotFound
from remuda.model.message import CORRELATION
from remuda.model.messages import Messages
from remuda.model.records import Appended, Binding, RouterKind
from tests.core.kit import NOW, Bench


def sizes(bench: Bench) -> dict[str, int]:
    return {name: queue.size for name, queue in bench.core.queues.items()}


def test_t1_one_copy_per_root_whatever_the_number_of_topics() -> None:
    bench = Bench()
    bench.publish("a", name="x", topics=("fruit.sour", "fruit.sweet", "food.healthy"))
    assert sizes(bench) == {"food": 1, "fruit": 1}


def test_t1_an_unknown_root_goes_to_the_default_queue() -> None:
    bench = Bench(default_queue="rest")
    bench.core.declare("fruit", None, bench.now)
    bench.publish("a", name="fruit.sour")
    bench.publish("b", name="stone.hard")
    assert sizes(bench) == {"fruit": 1, "rest": 1}


def test_t2_a_channel_gets_a_copy_by_prefix() -> None:
    bench = Bench()
    bench.core.declare("mine", {"type": "pull", "topics": ["fruit.sour", "food"]}, bench.now)
    for name in ("fruit.sour.lime", "fruit.sourdough", "food", "foods.x"):
        bench.publish("a", name=name)
    assert sizes(bench)["mine"] == 2
    bench.core.remove("mine", bench.now)
    bench.publish("a", name="food")
    assert "mine" not in sizes(bench)


def test_t2_routes_are_found_again_when_channels_change() -> None:
    distributor = Distributor()
    distributor.open_channel("one", ["a"])
    assert distributor.channels(("a.b",)) == ("one",)
    distributor.open_channel("two", ["*"])
    assert distributor.channels(("a.b",)) == ("one", "two")
    distributor.close_channel("one")
    assert distributor.channels(("a.b",)) == ("two",)


def test_t3_a_b_a_delivers_three_and_a_repetition_none() -> None:
    bench = Bench()
    for body in ("A", "B", "A", "A"):
        receipt = bench.publish(body, object="customer", key="1")
    assert receipt.unchanged == (0,)
    assert sizes(bench) == {"q": 3}


def test_t3_a_repetition_is_logged_but_goes_nowhere() -> None:
    bench = Bench()
    bench.publish("A", "A", object="customer", key="1")
    records = [record for effects in bench.effects for record in effects.records if isinstance(record, Appended)]
    assert records[0].queues == [("q",), ()]


@pytest.mark.parametrize("columns", [{}, {"object": "customer"}, {"key": "1"}])
def test_t3_without_object_or_key_nothing_is_unchanged(columns: dict[str, str]) -> None:
    bench = Bench()
    bench.publish("A", "A", **columns)
    assert sizes(bench) == {"q": 2}


def test_t3_is_switchable_per_object() -> None:
    bench = Bench(compacter=Compacter(True, {"noisy": False}))
    bench.publish("A", "A", object="noisy", key="1")
    bench.publish("A", "A", object="calm", key="1")
    assert sizes(bench) == {"q": 3}


def test_t3_objects_and_keys_do_not_run_together() -> None:
    assert history_key("a", "bc") != history_key("ab", "c")


def routed(kind: RouterKind, *bindings: Binding) -> Bench:
    bench = Bench()
    bench.core.set_router("r", kind, bindings, bench.now)
    return bench


def route(bench: Bench, *bodies: bytes) -> list[Appended]:
    bench.core.route(
        "r", Messages(bodies=list(bodies), name="orig", ids=[f"o{n}" for n in range(len(bodies))]), bench.now
    )
    return [record for record in bench.drain().records if isinstance(record, Appended)]


def test_q18_distribute_gives_everyone_a_copy_with_the_originals_id() -> None:
    bench = routed(RouterKind.DISTRIBUTE, Binding(queue="x"), Binding(topic="y.z"))
    records = route(bench, b"a", b"b")
    assert sizes(bench) == {"x": 2, "y": 2}
    for record in records:
        assert [message.headers[CORRELATION] for message in record.messages] == ["o0", "o1"]
        assert not {"o0", "o1"} & {message.id for message in record.messages}


def test_q18_round_robin_takes_turns() -> None:
    bench = routed(RouterKind.ROUND_ROBIN, Binding(queue="x"), Binding(queue="y"))
    route(bench, b"a", b"b", b"c")
    assert sizes(bench) == {"x": 2, "y": 1}


def test_q18_first_is_the_highest_priority_that_takes_it() -> None:
    bench = routed(RouterKind.FIRST, Binding(queue="low"), Binding(queue="high", priority=5))
    bench.core.declare("high", {"type": "pull", "message_limit": 1}, bench.now)
    route(bench, b"a", b"b")
    assert sizes(bench) == {"high": 1, "low": 1}


def test_q18_what_is_wrong_with_a_router_is_said() -> None:
    bench = routed(RouterKind.FIRST)
    with pytest.raises(Conflict, match="no binding"):
        route(bench, b"a")
    with pytest.raises(InvalidOption, match="either a queue or a topic"):
        bench.core.set_router("r", RouterKind.FIRST, [Binding(queue="x", topic="y")], NOW)
    bench.core.remove_router("r", NOW)
    with pytest.raises(NotFound):
        route(bench, b"a")
    with pytest.raises(NotFound):
        bench.core.remove_router("r", NOW)
