"""What rules of flow remember over restarts and changes on a live queue (F1, F3, F4, F7)."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.core.core import Core
from remuda.model.life import WAITING
from remuda.model.settlement import Outcome
from remuda.model.values.durations import DAY, SECOND
from tests.core.kit import Bench, offsets
from tests.core.test_flow import again


def restart(bench: Bench, how: str) -> None:
    fresh: Core = bench.restarted() if how == "replayed" else again(bench)
    if how == "restored":
        fresh.resume(bench.now)
    bench.core = fresh
    bench.drain()
    bench.sent.clear()


@pytest.mark.parametrize("how", ["replayed", "restored"])
@pytest.mark.parametrize(
    "rule", [{"rate": "1/s burst 1"}, {"rate_per_key": "1/s burst 1"}, {"limits": {"shared": "1/s burst 1"}}]
)
def test_f3_a_clock_that_was_ahead_holds_nothing_back(rule: dict[str, Any], how: str) -> None:
    """A process ran with its clock three days ahead; the next one, with the right clock, waits a second, not days."""
    bench = Bench({"type": "pull", **rule})
    bench.publish(*"abc", key="a")
    bench.now += 3 * DAY
    bench.answer(bench.pull(), Outcome.ACK)
    bench.now -= 3 * DAY - SECOND // 2
    restart(bench, how)
    for waited in (0, 1):
        assert (bench.pull() is None) is not waited
        bench.wait(1)
    restart(bench, "replayed")
    bench.wait(1)
    assert bench.pull() is not None, "nothing waits for the clock of the first process"


@pytest.mark.parametrize("how", ["replayed", "restored"])
def test_f4_a_clock_that_was_ahead_skips_nothing(how: str) -> None:
    bench = Bench({"type": "pull", "throttle": "1m"})
    bench.now += 3 * DAY
    bench.publish("a", key="k")
    bench.now -= 3 * DAY - SECOND
    restart(bench, how)
    assert not bench.publish("b", key="k").by_key
    assert bench.publish("c", key="k").by_key == {0: "skipped"}


@pytest.mark.parametrize("how", ["live", "replayed", "restored"])
@pytest.mark.parametrize("rule", [{"rate": "1/s burst 1"}, {"limits": {"shared": "1/s burst 1"}}])
def test_f3_a_message_that_was_moved_keeps_its_weight(rule: dict[str, Any], how: str) -> None:
    """It counts as several in the queue that it came to, and still does after a restart."""
    bench = Bench({"type": "pull"})
    bench.declare("paced", {"type": "pull", **rule})
    bench.publish("x", headers=[{"remuda-flow-weight": "5"}])
    bench.move("paced", states=WAITING)
    bench.publish_to({"queue": "paced"}, "y")
    bench.answer(bench.pull(queue="paced"), Outcome.ACK)
    if how != "live":
        restart(bench, how)
    bench.wait(4.9)
    assert bench.pull(queue="paced") is None
    bench.wait(0.2)
    assert bench.pull(queue="paced") is not None


@pytest.mark.parametrize("on_retry", ["hold", "pass"])
def test_f1_order_that_is_switched_on_counts_no_priorities(on_retry: str) -> None:
    """Neither of messages that wait, nor of delayed ones that join their line later."""
    bench = Bench({"type": "pull"})
    bench.publish("a", "b", "c", "d", priority=[0, 9, 31, 9], due=[None, None, None, bench.now + SECOND])
    bench.core.registry._facts_of = lambda offset: None
    bench.configure(ordered=True, on_retry=on_retry)
    bench.publish("e", due=bench.now + 2 * SECOND)
    bench.wait(3)
    out = []
    for _ in range(5):
        found = bench.pull(5)
        out += offsets(found)
        bench.answer(found, Outcome.ACK)
    assert out == [0, 1, 2, 3, 4]
