"""G2, G3: a crash at every event of a workflow that has a bit of everything.

The log of one run is cut after each of its records, as a crash leaves it, and the run goes on from there, in what is a
new process for it.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Run
from remuda.bus.testing import ManualClock
from remuda.log.segments import HEADER_BYTES
from remuda.log.tail.tail_frames import MARKER_BYTES, Frame, scan

BEGAN = 1_800_000_000_000_000


class World:
    """What steps change, and when: how long the log was then."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.effects: list[tuple[int, str]] = []

    def tail(self) -> Path:
        *_, found = sorted((self.directory / "tail").glob("*.log"))
        return found

    def do(self, what: str) -> str:
        self.effects.append((frames_end(self.tail()), what))
        return what


def frames_end(file: Path) -> int:
    return max((item.end for item in frames(file)), default=0)


def frames(file: Path) -> list[Frame]:
    data = file.read_bytes()
    marker = bytes.fromhex(file.stem.split("-")[1])
    assert len(marker) == MARKER_BYTES
    return [item for item in scan(data[HEADER_BYTES:], marker, HEADER_BYTES) if isinstance(item, Frame)]


def app(world: World, *, fails: bool) -> Bus:
    bus = Bus(world.directory)

    @bus.subscribe("double", queue="double")
    def double(n: int) -> int:
        return 2 * n

    @bus.subscribe("news", queue="news")
    def news(text: str) -> None:
        world.effects.append((0, f"news {text}"))

    @bus.workflow(name="w", waits_for="approved", retry=["1m"])
    def w(run: Run, body: str) -> Any:
        first = run.step(world.do, f"charge {body}", name="charge", undo=lambda value: world.do(f"undo {value}"))
        run.sleep("1h")
        both = run.gather(partial(world.do, "left"), partial(world.do, "right"))
        said = run.wait_for("approved", key=body)
        run.publish("news", f"approved {body}")
        answer = run.call("double", 21)
        results = run.group([("double", 1), ("double", 2)])
        run.step(world.do, "ship", undo=lambda value: world.do(f"undo {value}"))
        if fails:
            raise RuntimeError("no truck")
        return [first, *both, said, answer, [one.value for one in results]]

    return bus


def play(world: World, now: int, *, fails: bool) -> tuple[Any, list[Any], str]:
    """Start the run and approve it, unless that has been done, and see it to its end."""
    bus = app(world, fails=fails)
    with bus.testing(world.directory, clock=ManualClock(now)) as test:
        id = bus.workflows.start("w", "a", id="mine")
        test.run()
        bus.publish("approved", "yes", key="a", idempotency_key="approval")
        test.advance("3h")
        steps = bus.workflows.steps(id)
        status = bus.workflows.status(id)
        result = None if fails else bus.workflows.result(id)
    return result, steps, status.reason or ""


def cut(source: Path, target: Path, end: int) -> None:
    """The directory as it was when its log was this long."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("socket", "checkpoint"))
    (file,) = (target / "tail").glob("*.log")
    size = file.stat().st_size
    os.truncate(file, end)
    os.truncate(file, size)


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "is undone"])
def test_g2_a_crash_at_every_event(tmp_path: Path, *, fails: bool) -> None:
    whole = World(tmp_path / "whole")
    kept = tmp_path / "kept"
    bus = app(whole, fails=fails)
    with bus.testing(whole.directory, clock=ManualClock(BEGAN)) as test:
        id = bus.workflows.start("w", "a", id="mine")
        test.run()
        bus.publish("approved", "yes", key="a", idempotency_key="approval")
        test.advance("3h")
        expected = None if fails else bus.workflows.result(id)
        why = bus.workflows.status(id).reason or ""
        bus.broker.spectate()  # which has everything written
        shutil.copytree(whole.directory, kept, ignore=shutil.ignore_patterns("socket", "checkpoint"))
    (file,) = (kept / "tail").glob("*.log")
    ends = [HEADER_BYTES, *(frame.end for frame in frames(file))]
    assert len(ends) > 30
    effects = ["charge a", "left", "right", "ship"]
    undone = ["undo ship", "undo charge a"] if fails else []
    for end in ends:
        world = World(tmp_path / f"at-{end}")
        cut(kept, world.directory, end)
        world.effects = [(at, what) for at, what in whole.effects if at <= end and at]
        before = Counter(what for _, what in world.effects)
        result, steps, reason = play(world, BEGAN + 4 * 3600 * 1_000_000, fails=fails)
        assert result == expected, f"cut at {end}"
        assert reason == why, f"cut at {end}"
        assert set(Counter(one.number for one in steps).values()) == {1}, f"a step was recorded twice, cut at {end}"
        made = Counter(what for _, what in world.effects)
        for what in effects + undone:
            # An effect before the cut is repeated only if its record was cut off.
            assert 1 <= made[what] <= 1 + before[what], f"{what}, cut at {end}: {made}"
        if fails:
            order = [what for _, what in world.effects if what.startswith("undo")]
            assert order[-1] == "undo charge a", f"cut at {end}"
        shutil.rmtree(world.directory)
