"""L4: a core saved and loaded is the same core."""

from __future__ import annotations

from remuda.core import snapshot
from remuda.core.core import Core
from remuda.model.commands import DeclareExchange
from remuda.model.ids import Snowflakes
from remuda.model.message import Priority
from remuda.model.options import Status
from remuda.model.routing import Binding, ExchangeKind
from remuda.model.settlement import Outcome
from tests.core.kit import Bench
from tests.core.naive import state_of


def lived_in() -> Bench:
    """One of everything: waiting, high, put back, delayed, in flight, parked, ids, routers, history."""
    bench = Bench({"type": "pull", "unique_ids": True, "put_back": "priority", "message_timeout": 100})
    bench.publish(*"abcdefgh", ids=list("abcdefgh"))
    for answer in (Outcome.NACK, Outcome.RETRY, Outcome.DEAD, Outcome.INVALID):
        dispatch = bench.pull(newest=True)
        assert dispatch is not None
        bench.answer(dispatch, answer, delay=5_000_000 if answer is Outcome.RETRY else None)
    bench.publish("high", ids=["high"], priority=Priority.HIGH)
    bench.publish("due", ids=["due"], due=bench.now + 9_000_000)
    bench.pull()
    bench.publish("A", name="other", object="customer", key="1")
    bench.declare("channel", {"type": "push", "topics": ["x"], "confirmations": "per-topic"})
    bench.publish("t", name="x.y", topics=("x.y", "x.z"))
    bench.set_status(Status.PAUSED, "other")
    bench.do(DeclareExchange("r", ExchangeKind.FIRST, (Binding(queue="q", priority=2),)))
    return bench


def loaded(core: Core) -> Core:
    fresh = Core(Snowflakes(1))
    snapshot.load(fresh, snapshot.save(core))
    return fresh


def test_l4_save_and_load_give_the_same_core() -> None:
    core = lived_in().core
    fresh = loaded(core)
    assert state_of(fresh) == state_of(core)
    assert snapshot.save(fresh) == snapshot.save(core)
    assert fresh.compacter.history == core.compacter.history
    assert (fresh.recorder.next_offset, fresh.recorder.next_position) == (
        core.recorder.next_offset,
        core.recorder.next_position,
    )
    assert fresh.routing.exchanges["r"].bindings == core.routing.exchanges["r"].bindings
    assert fresh.routing.channels(("x.y",)) == ("channel",)


def test_m4_ids_go_on_above_those_given_before() -> None:
    bench = Bench({"type": "pull"})
    before = bench.publish(*"abc").ids
    fresh = loaded(bench.core)
    assert fresh.snowflakes.take(1, bench.now - 3_600_000_000)[0] > int(before[-1])


def test_q5_delays_and_deadlines_come_due_after_loading() -> None:
    bench = lived_in()
    fresh = loaded(bench.core)
    fresh.resume(bench.now)
    delayed = fresh.info("q").delayed
    fresh.tick(bench.now + 9_000_000)
    assert (delayed, fresh.info("q").delayed) == (2, 0)
    fresh.tick(bench.now + 101_000_000)
    assert fresh.info("q").waiting == 0
