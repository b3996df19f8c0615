"""L4: a core saved and loaded is the same core."""

from __future__ import annotations

from array import array

import msgspec

from remuda.core.core import Core
from remuda.core.queues.ready import NEVER
from remuda.core.recovery import snapshot
from remuda.model.ids import Snowflakes
from remuda.model.message import Priority
from remuda.model.notes import NOTE, Note, note_headers
from remuda.model.operations.commands import DeclareExchange
from remuda.model.queues.options import Status
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.settlement import Outcome
from tests.core.kit import NOW, Bench
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
    for number in (0, 5):
        bench.publish_to({"note": Note("q", 0, number)}, "n", name=NOTE, headers=note_headers(Note("q", 0, number)))
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


def test_l4_a_snapshot_of_the_first_version_is_read() -> None:
    """Three lines of waiting messages, and a flag for high priority."""

    def lines(*runs: tuple[int, int]) -> bytes:
        return array("q", [number for first, count in runs for number in (first, count, NEVER)]).tobytes()

    options = {"type": "pull", "unique_ids": True}
    lanes = [lines((4, 1)), lines((1, 1)), lines((5, 2))]
    flights = [[0, 1, "F", NEVER, True, 2, 7, 0, False, None, NOW]]
    delayed = [[2, 1, "R", NEVER, False, 1, -1, NOW + 5, True, None, 0]]
    parked = [[3, 1, "E", NEVER, True, 0, -1, 0, False, "given up", NOW]]
    queue = [
        "q",
        options,
        "running",
        lanes,
        flights,
        delayed,
        parked,
        {1: 1},
        {1: "x", 3: "x"},
        {},
        {"Q": 7},
        [True, True],
    ]
    routers = {"r": ["first", [["q", None, 2]]]}
    old = msgspec.msgpack.encode([7, 20, 99, [queue], routers, {b"k": b"v"}, {0: NOW}, {"app": [3, 1, False, {}]}])
    core = Core(Snowflakes(1))
    snapshot.load(core, old)
    found = core.queues["q"]
    assert [(*level[:2], list(level[2].runs())) for level in found.ready.levels()] == [
        (1, False, [(4, 1, NEVER)]),
        (0, True, [(1, 1, NEVER)]),
        (0, False, [(5, 2, NEVER)]),
    ]
    assert [(one.priority, one.attempt, one.redelivered) for one in found.flights] == [(1, 2, True)]
    assert [(one.front, one.due, one.redelivered) for one in found.delayed] == [(True, NOW + 5, True)]
    assert [(one.state, one.reason, one.priority) for one in found.parked] == [("E", "given up", 1)]
    assert (dict(found.attempts), found.offset_of, core.recorder.next_position) == ({1: 1}, {"x": 1}, 20)
    assert core.routing.exchanges["r"].bindings == (Binding(queue="q", priority=2),)
    assert core.spool.progress("app", 3).rows == 1
    assert state_of(loaded(core)) == state_of(core)
