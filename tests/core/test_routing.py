"""Where a message goes: roots, channels, the compacter, routers (T1, T2, T3, Q18)."""

from __future__ import annotations

import pytest

from remuda.core.compacter import Compacter, history_key
from remuda.core.routing import Routing
from remuda.model.commands import DeclareExchange, RemoveExchange
from remuda.model.errors import Conflict, NotFound
from remuda.model.message import CORRELATION
from remuda.model.records import Appended
from remuda.model.routing import Binding, ExchangeKind
from tests.core.kit import Bench


def test_t1_one_copy_per_root_whatever_the_number_of_topics() -> None:
    bench = Bench()
    bench.publish("a", name="x", topics=("fruit.sour", "fruit.sweet", "food.healthy"))
    assert bench.sizes() == {"food": 1, "fruit": 1}


def test_t1_an_unknown_root_goes_to_the_default_queue() -> None:
    bench = Bench(default_queue="rest")
    bench.declare("fruit", None)
    bench.publish("a", name="fruit.sour")
    bench.publish("b", name="stone.hard")
    assert bench.sizes() == {"fruit": 1, "rest": 1}


def test_t2_a_channel_gets_a_copy_by_prefix() -> None:
    bench = Bench()
    bench.declare("mine", {"type": "pull", "topics": ["fruit.sour", "food"]})
    for name in ("fruit.sour.lime", "fruit.sourdough", "food", "foods.x"):
        bench.publish("a", name=name)
    assert bench.sizes()["mine"] == 2
    bench.remove("mine")
    bench.publish("a", name="food")
    assert "mine" not in bench.sizes()


def test_t2_routes_are_found_again_when_channels_change() -> None:
    routing = Routing()
    routing.open_channel("one", ["a"])
    assert routing.channels(("a.b",)) == ("one",)
    routing.open_channel("two", ["*"])
    assert routing.channels(("a.b",)) == ("one", "two")
    routing.close_channel("one")
    assert routing.channels(("a.b",)) == ("two",)


def test_t3_a_b_a_delivers_three_and_a_repetition_none() -> None:
    bench = Bench()
    for body in ("A", "B", "A", "A"):
        receipt = bench.publish(body, object="customer", key="1")
    assert receipt.unchanged == (0,)
    assert bench.sizes() == {"q": 3}


def test_t3_a_repetition_is_logged_but_goes_nowhere() -> None:
    bench = Bench()
    bench.publish("A", "A", object="customer", key="1")
    records = [record for effects in bench.effects for record in effects.records if isinstance(record, Appended)]
    assert records[0].queues == [("q",), ()]


@pytest.mark.parametrize("columns", [{}, {"object": "customer"}, {"key": "1"}])
def test_t3_without_object_or_key_nothing_is_unchanged(columns: dict[str, str]) -> None:
    bench = Bench()
    bench.publish("A", "A", **columns)
    assert bench.sizes() == {"q": 2}


def test_t3_is_switchable_per_object() -> None:
    bench = Bench(compacter=Compacter(True, {"noisy": False}))
    bench.publish("A", "A", object="noisy", key="1")
    bench.publish("A", "A", object="calm", key="1")
    assert bench.sizes() == {"q": 3}


def test_t3_objects_and_keys_do_not_run_together() -> None:
    assert history_key("a", "bc") != history_key("ab", "c")


def routed(kind: ExchangeKind, *bindings: Binding) -> Bench:
    bench = Bench()
    bench.do(DeclareExchange("r", kind, bindings))
    return bench


def route(bench: Bench, *bodies: str) -> list[Appended]:
    before = len(bench.appended)
    bench.publish_to({"exchange": "r"}, *bodies, name="orig", ids=[f"o{n}" for n in range(len(bodies))])
    return bench.appended[before:]


def test_q18_distribute_gives_everyone_a_copy_with_the_originals_id() -> None:
    bench = routed(ExchangeKind.DISTRIBUTE, Binding(queue="x"), Binding(topic="y.z"))
    records = route(bench, "a", "b")
    assert bench.sizes() == {"x": 2, "y": 2}
    for record in records:
        assert [message.headers[CORRELATION] for message in record.messages] == ["o0", "o1"]


def test_q18_round_robin_takes_turns() -> None:
    bench = routed(ExchangeKind.ROUND_ROBIN, Binding(queue="x"), Binding(queue="y"))
    route(bench, "a", "b", "c")
    assert bench.sizes() == {"x": 2, "y": 1}


def test_q18_first_is_the_highest_priority_that_takes_it() -> None:
    bench = routed(ExchangeKind.FIRST, Binding(queue="low"), Binding(queue="high", priority=5))
    bench.declare("high", {"type": "pull", "message_limit": 1})
    route(bench, "a", "b")
    assert bench.sizes() == {"high": 1, "low": 1}


def test_q18_what_is_wrong_with_a_router_is_said() -> None:
    bench = routed(ExchangeKind.FIRST)
    with pytest.raises(Conflict, match="no binding"):
        route(bench, "a")
    bench.do(RemoveExchange("r"))
    with pytest.raises(NotFound):
        route(bench, "a")
    with pytest.raises(NotFound):
        bench.do(RemoveExchange("r"))
