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
from typing import Any, NamedTuple

import pytest

from remuda import Bus, Run, StepRecord
from remuda.bus.testing import ManualClock, TestBus
from remuda.log.segments import HEADER_BYTES
from remuda.log.tail.tail_frames import MARKER_BYTES, Frame, scan
from remuda.model.values.durations import SECOND

BEGAN = 1_800_000_000_000_000


class World:
    """What steps change, and when: how long the log was then."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.effects: list[tuple[int, str]] = []
        self.is_broken = False

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


ENDINGS = ["succeeds", "is undone", "is cancelled", "is restarted"]


def app(world: World, ending: str, kind: str) -> Bus:
    bus = Bus(world.directory)

    @bus.subscribe("double", queue="double")
    def double(n: int) -> int:
        return 2 * n

    @bus.subscribe("news", queue="news")
    def news(text: str) -> None:
        world.effects.append((0, f"news {text}"))

    def undo(value: str) -> None:
        world.do(f"undo {value}")

    def ship() -> str:
        world.do("ship")
        if world.is_broken:
            raise ConnectionError("no truck")
        return "ship"

    def function(run: Run, body: str) -> Any:
        first = run.step(world.do, f"charge {body}", name="charge", undo=undo if ending != "is restarted" else None)
        run.sleep("1h")
        both = run.gather(partial(world.do, "left"), partial(world.do, "right"))
        said = run.wait_for("approved", key=body)
        run.publish("news", f"approved {body}")
        answer = run.call("double", 21)
        results = run.group([("double", 1), ("double", 2)])
        run.step(ship, undo=undo if ending == "is undone" else None)
        if ending == "is undone":
            raise RuntimeError("no truck")
        return [first, *both, said, answer, [one.value for one in results]]

    async def coroutine(run: Run, body: str) -> Any:
        async def do(what: str) -> str:
            return world.do(what)

        first = await run.step(do, f"charge {body}", name="charge", undo=undo if ending != "is restarted" else None)
        await run.sleep("1h")
        both = await run.gather(partial(do, "left"), partial(do, "right"))
        said = await run.wait_for("approved", key=body)
        await run.publish("news", f"approved {body}")
        answer = await run.call("double", 21)
        results = await run.group([("double", 1), ("double", 2)])
        await run.step(ship, undo=undo if ending == "is undone" else None)
        if ending == "is undone":
            raise RuntimeError("no truck")
        return [first, *both, said, answer, [one.value for one in results]]

    bus.workflow(name="w", waits_for="approved", retry=["1m"] if ending != "is restarted" else "never")(
        function if kind == "function" else coroutine
    )
    return bus


class Played(NamedTuple):
    result: Any
    reason: str
    steps: list[StepRecord]


def play(bus: Bus, test: TestBus, world: World, ending: str) -> Played:
    """Start the run, approve it or cancel it, and repair what is broken, unless that has been done; see it to its
    end."""
    flows = bus.workflows
    id = flows.start("w", "a", id="mine")
    test.run()
    if ending == "is cancelled":
        flows.cancel(id, who="ann")
    else:
        bus.publish("approved", "yes", key="a", idempotency_key="approval")
    test.advance("3h")
    if ending == "is restarted":
        world.is_broken = False
        if flows.status(id).state == "failed":
            flows.restart(id)
            test.run()
    status = flows.status(id)
    result = flows.result(id) if status.state == "done" else None
    return Played(result, status.reason or "", flows.steps(id))


def cut(source: Path, target: Path, end: int) -> None:
    """The directory as it was when its log was this long."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("socket", "checkpoint"))
    (file,) = (target / "tail").glob("*.log")
    size = file.stat().st_size
    os.truncate(file, end)
    os.truncate(file, size)


@pytest.mark.parametrize(
    ("ending", "kind"),
    [*((ending, "function") for ending in ENDINGS), ("is undone", "coroutine")],
)
def test_g2_a_crash_at_every_event(tmp_path: Path, ending: str, kind: str) -> None:
    whole = World(tmp_path / "whole")
    whole.is_broken = ending == "is restarted"
    kept = tmp_path / "kept"
    bus = app(whole, ending, kind)
    with bus.testing(whole.directory, clock=ManualClock(BEGAN)) as test:
        expected = play(bus, test, whole, ending)
        bus.broker.spectate()  # which has everything written
        shutil.copytree(whole.directory, kept, ignore=shutil.ignore_patterns("socket", "checkpoint"))
    (file,) = (kept / "tail").glob("*.log")
    ends = [HEADER_BYTES, *(frame.end for frame in frames(file))]
    assert len(ends) > (10 if ending == "is cancelled" else 30)
    must = {"charge a", "undo charge a"} if ending == "is cancelled" else {"charge a", "left", "right", "ship"}
    must |= {"undo ship", "undo charge a"} if ending == "is undone" else set()
    assert (expected.result is None) == (ending in ("is undone", "is cancelled"))
    for end in ends:
        at = f"cut at {end}"
        world = World(tmp_path / f"at-{end}")
        cut(kept, world.directory, end)
        world.effects = [(made, what) for made, what in whole.effects if made <= end and made]
        before = Counter(what for _, what in world.effects)
        bus = app(world, ending, kind)
        with bus.testing(world.directory, clock=ManualClock(BEGAN + 4 * 3600 * SECOND)) as test:
            found = play(bus, test, world, ending)
        assert (found.result, found.reason) == (expected.result, expected.reason), at
        restarts = sum(one.kind == "restarted" for one in found.steps)
        times = Counter(one.number for one in found.steps)
        assert max(times.values()) <= 1 + restarts, f"a step was recorded twice, {at}"
        made = Counter(what for _, what in world.effects)
        for what in must:
            # An effect before the cut is repeated only if its record was cut off, or by the restart.
            assert 1 <= made[what] <= 1 + before[what], f"{what}, {at}: {made}"
        undone = [what for _, what in world.effects if what.startswith("undo")]
        assert undone[-1:] == (["undo charge a"] if "undo charge a" in must else []), at
        shutil.rmtree(world.directory)
