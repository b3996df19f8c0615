"""Clocks that jump: leases, deadlines and ids stand it (Q3, Q5, M4)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.values.durations import DAY, HOUR, MINUTE, SECOND

pytestmark = pytest.mark.faults

START = 1_800_000_000 * SECOND


class WallClock:
    """A clock that the test sets."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def test_m4_ids_never_repeat_when_the_clock_jumps_between_restarts(tmp_path: Path) -> None:
    """Whether the process before ended well or was cut off: the same worker goes on above its last id."""
    ids: list[int] = []
    for jump in (0, -HOUR, 2 * HOUR, -HOUR, 0, 0):
        clock = WallClock(START + jump)
        with open_broker(tmp_path / "log", clock=clock, worker=1, sync="os") as broker:
            for _ in range(5):
                ids += map(int, broker.publish([Message("q", b"")] * 300).ids)
    assert ids == sorted(set(ids))


def test_q3_a_clock_set_back_during_a_run_neither_frees_nor_stretches_a_lease(tmp_path: Path) -> None:
    clock = WallClock(START)
    with open_broker(tmp_path / "log", clock=clock, sync="os") as broker:
        broker.create_queue("q", type="pull", acknowledge_timeout=10)
        broker.publish(Message("q", b""))
        first = broker.pull("q")
        assert first is not None
        clock.now = START - HOUR
        assert broker.pull("q") is None
        clock.now = START + 11 * SECOND
        broker.runtime.tick()
        second = broker.pull("q")
        assert second is not None
        assert first.ack() == 0
        assert second.ack() == 1


def test_q5_the_deadline_is_a_moment_and_survives_restarts_and_jumps(tmp_path: Path) -> None:
    clock = WallClock(START)
    with open_broker(tmp_path / "log", clock=clock, sync="os") as broker:
        broker.create_queue("q", type="pull", message_timeout=60)
        broker.publish(Message("q", b""))
    clock.now = START - HOUR
    with open_broker(tmp_path / "log", clock=clock, sync="os") as broker:
        assert broker.queue("q").waiting == 1
        clock.now = START + 59 * SECOND
        broker.runtime.tick()
        assert broker.queue("q").waiting == 1
        clock.now = START + 60 * SECOND
        assert broker.pull("q") is None
        assert broker.queue("q").dead == 1


def test_b14_a_delayed_message_that_was_settled_stays_settled_after_a_crash(tmp_path: Path) -> None:
    """Its release into the line is no event of its own, so replaying must find it by time."""
    clock = WallClock(START)
    broker = open_broker(tmp_path / "log", clock=clock, sync="os")
    broker.create_queue("q", type="pull")
    broker.publish([Message("q", b"late", due=START + 10 * SECOND), Message("q", b"soon")])
    clock.now = START + 20 * SECOND
    broker.publish(Message("q", b"last"))
    soon, late = broker.pull("q"), broker.pull("q")
    assert soon is not None
    assert late is not None
    assert (soon.bodies, late.bodies) == ([b"soon"], [b"late"])
    late.ack()
    broker.runtime.flush()
    shutil.copytree(tmp_path / "log", tmp_path / "crashed", ignore=shutil.ignore_patterns("socket"))
    broker.close()
    with open_broker(tmp_path / "crashed", clock=clock, sync="os") as again:
        left = again.pull("q", 10)
        assert left is not None
        assert left.bodies == [b"last", b"soon"]


@pytest.mark.parametrize("ended", ["closed", "killed"])
@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"debounce": 5}], ids=["plain", "ordered", "debounced"])
def test_b14_l11_what_a_clock_ahead_took_to_be_due_waits_again_when_it_is_right(
    tmp_path: Path, options: dict[str, Any], ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, folder = WallClock(START), tmp_path / "log"
    due = START + 30 * DAY

    def opened() -> EmbeddedBroker:
        return open_broker(folder, clock=clock, sync="os", shared=False)

    with opened() as broker:
        broker.create_queue("q", type="pull", **options)
        broker.create_queue("other")
        broker.publish([Message("q", b"%d" % n, due=due, key=f"k{n}") for n in range(3)])
        broker.publish(Message("other", b"moved", due=due))
        assert broker.move("other", to="q") == 1
    clock.now = START + 60 * DAY
    broker = opened()
    broker.publish(Message("q", b"from the future", key="k9"))
    clock.now += MINUTE
    taken = broker.pull("q")
    assert taken is not None
    assert taken.bodies == [b"0"]
    taken.nack()
    assert broker.queue("q").delayed == 0
    if ended == "closed":
        broker.close()
    else:
        broker.runtime.flush()
        shutil.copytree(folder, tmp_path / "killed", ignore=shutil.ignore_patterns("socket"))
        broker.close()
        folder = tmp_path / "killed"
    clock.now = START + HOUR
    for start in range(2):
        with opened() as broker:
            info = broker.queue("q")
            assert (info.waiting, info.delayed) == (2, 3), "what was tried stays, and what nobody delayed"
        assert ("3 messages, taken to be due" in caplog.text) == (start == 0)
        caplog.clear()
    clock.now = due + HOUR
    with opened() as broker:
        found = broker.pull("q", 10)
        assert found is not None
        assert sorted(found.bodies) == [b"0", b"1", b"2", b"from the future", b"moved"]
