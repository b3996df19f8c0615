"""Where a message goes: roots, channels, the compacter, routers (T1, T2, T3, Q18)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.compacter import Compacter, history_key
from remuda.core.routing import Routing
from remuda.model.errors import Conflict, NotFound
from remuda.model.message import CORRELATION
from remuda.model.operations.commands import Bind, DeclareExchange, RemoveExchange, Unbind
from remuda.model.queues.options import Status
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.records import Appended
from remuda.model.topics import has_prefix, matches
from tests.core.kit import PULL, Bench


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


def test_q18_a_distributed_message_is_stored_once() -> None:
    bench = routed(ExchangeKind.DISTRIBUTE, Binding(queue="x"), Binding(queue="y"), Binding(queue="z"))
    bench.declare("z", {**PULL, "message_limit": 1})
    (record,) = route(bench, "a", "b")
    assert record.queues == [("x", "y", "z"), ("x", "y")]
    assert bench.sizes() == {"x": 2, "y": 2, "z": 1}


def test_q18_round_robin_skips_who_refuses_and_goes_on_behind() -> None:
    bench = routed(ExchangeKind.ROUND_ROBIN, Binding(queue="x"), Binding(queue="y"), Binding(queue="z"))
    bench.declare("y", PULL)
    bench.set_status(Status.PAUSED, "y")
    route(bench, *"abcd")
    assert bench.sizes() == {"y": 0, "x": 2, "z": 2}


@pytest.mark.parametrize("kind", [ExchangeKind.DISTRIBUTE, ExchangeKind.ROUND_ROBIN])
def test_q18_a_router_may_lead_to_an_exchange(kind: ExchangeKind) -> None:
    bench = routed(kind, Binding(exchange="x"))
    bench.do(DeclareExchange("x", ExchangeKind.DIRECT, (Binding(queue="here", key="orig"),)))
    route(bench, "a")
    assert bench.sizes() == {"here": 1}


def test_q18_a_binding_may_get_another_priority() -> None:
    bench = routed(ExchangeKind.FIRST, Binding(queue="x", priority=2), Binding(queue="y", priority=1))
    bench.do(Bind("r", Binding(queue="y", priority=3)))
    route(bench, "a")
    assert bench.sizes() == {"y": 1}


@pytest.mark.parametrize(
    ("kind", "binding", "names"),
    [
        (ExchangeKind.DIRECT, Binding(queue="x", key="a.b"), {"a.b"}),
        (ExchangeKind.FANOUT, Binding(queue="x", key="a.b"), {"a", "a.b", "b.b.c"}),
        (ExchangeKind.TOPIC, Binding(queue="x", key="*.b.#"), {"a.b", "b.b.c"}),
        (ExchangeKind.HEADERS, Binding(queue="x", arguments={"colour": "red"}), {"a.b"}),
        (ExchangeKind.HEADERS, Binding(queue="x", arguments={"colour": "red", "size": "1"}), set()),
        (ExchangeKind.HEADERS, Binding(queue="x", arguments={"x-match": "any", "colour": "red", "size": "1"}), {"a.b"}),
    ],
)
def test_q18_exchanges_by_kind(kind: ExchangeKind, binding: Binding, names: set[str]) -> None:
    """What no binding takes is in the log, in no queue, and its producer is told."""
    bench = routed(kind, binding)
    for name in ("a", "a.b", "b.b.c"):
        headers = {"colour": "red"} if name == "a.b" else {}
        receipt = bench.publish_to({"exchange": "r"}, "m", name=name, headers=headers)
        assert receipt.unroutable == (() if name in names else (0,))
        assert bench.appended[-1].queues == (("x",) if name in names else ())
    bench.do(Unbind("r", binding))
    assert bench.publish_to({"exchange": "r"}, "m", name="a.b").unroutable == (0,)


def test_q18_a_receipt_names_rows_of_the_batch_also_where_others_are_refused() -> None:
    bench = routed(ExchangeKind.DIRECT, Binding(queue="x", key="a"))
    bench.declare("x", {"message_size_limit": 1})
    receipt = bench.publish_to({"exchange": "r"}, "long", "m", "m", name=["a", "nowhere", "a"])
    assert (list(receipt.refusals), receipt.unroutable) == ([0], (1,))


def test_q18_from_exchange_to_exchange_each_queue_gets_one_and_circles_end() -> None:
    bench = routed(ExchangeKind.FANOUT, Binding(exchange="s"), Binding(queue="x"))
    bench.do(DeclareExchange("s", ExchangeKind.TOPIC, (Binding(queue="x", key="a.#"), Binding(queue="y", key="a.*"))))
    bench.do(Bind("s", Binding(exchange="r", key="#")))
    bench.publish_to({"exchange": "r"}, "1", "2", name=["a.b", "c"])
    assert bench.sizes() == {"x": 2, "y": 1}


WORD = st.sampled_from(["a", "b", "*", "#"])
TOPIC = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(".".join)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(WORD, min_size=1, max_size=5).map(".".join)), max_size=12),
    st.lists(TOPIC, min_size=1, max_size=4),
    st.sets(st.integers(0, 11)),
)
def test_t2_channels_are_those_that_the_plain_rule_finds(
    channels: list[tuple[bool, str]], topics: list[str], closed: set[int]
) -> None:
    routing = Routing()
    wanted = set()
    for number, (by_prefix, text) in enumerate(channels):
        prefix = text.replace("#", "a").replace("*", "b")
        routing.open_channel(str(number), [prefix] if by_prefix else [], [] if by_prefix else [text])
        if number not in closed and any(has_prefix(one, prefix) if by_prefix else matches(text, one) for one in topics):
            wanted.add(str(number))
    for number in closed:
        routing.close_channel(str(number))
    found = routing.channels(tuple(topics))
    assert set(found) == wanted
    assert list(found) == sorted(found, key=int)
