"""G4, G5, G6: following runs and handlers: steps of what has ended, replays, progress, results of many."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Context, Diverged, HandlerFailed, ResultNotReady, Run
from remuda.model.errors import InvalidOption
from remuda.testing import replay_histories
from tests.bus.kit import eventually, running


def test_g4_the_steps_of_a_run_that_has_ended_are_still_known() -> None:
    bus = Bus()

    @bus.subscribe("double", queue="double")
    def double(n: int) -> int:
        return 2 * n

    @bus.workflow(name="w")
    def w(run: Run, body: int) -> Any:
        run.uuid()  # takes a number, and notes nothing
        run.group([("double", 1), ("double", 2)])
        return run.step(lambda: body, name="last")

    with bus.testing() as test:
        id = bus.workflows.start("w", 5)
        test.run()
        kinds = [one.kind for one in bus.workflows.steps(id)]
        assert kinds == ["group", "member", "member", "step"]
        assert [one.name for one in bus.workflows.status(id).steps] == ["group", "last"]
        (listed,) = bus.workflows.runs("w", ended=True)
        assert (listed.id, listed.state) == (id, "done")
        assert bus.workflows.runs("w") == []


def test_g4_runs_are_found_by_what_they_do_now() -> None:
    """Those of other states are not even looked at: there may be a hundred thousand that sleep."""
    bus, busy, go_on = Bus(), threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go_on.wait(60)

    @bus.workflow(name="w", retry="never")
    def w(run: Run, what: str) -> None:
        if what == "run":
            run.step(hold)
        elif what == "sleep":
            run.sleep("1h")
        else:
            raise ValueError("no")

    with running(bus):
        ids = {what: bus.workflows.start("w", what, id=what) for what in ("sleep", "fail")}
        ids["wait"] = bus.workflows.start("w", "wait", id="wait", delay="1h")
        for what, state in (("sleep", "sleeping"), ("fail", "failed")):
            eventually(partial(lambda what, state: bus.workflows.status(what).state == state, what, state), 60)
        bus.workflows.start("w", "run", id="run")
        assert busy.wait(60)
        looked, message = list[Any](), bus.broker.message

        def counted(which: Any) -> Any:
            looked.append(which)
            return message(which)

        bus.broker.message = counted  # type: ignore[assignment]
        for what, state in (("sleep", "sleeping"), ("fail", "failed"), ("wait", "waiting"), ("run", "running")):
            looked.clear()
            assert [(one.id, one.state) for one in bus.workflows.runs("w", state=state)] == [(what, state)]
            assert len(looked) == 1
        assert {one.id for one in bus.workflows.runs("w")} == {"sleep", "fail", "wait", "run"}
        go_on.set()


@pytest.mark.parametrize("ends", [True, False])
def test_g2_histories_are_replayed_against_the_code_of_today(*, ends: bool) -> None:
    bus, done, order = Bus(), list[str](), ["charge", "ship"]

    def do(what: str) -> str:
        done.append(what)
        return what

    @bus.workflow(name="w")
    def w(run: Run) -> None:
        for what in order:
            run.step(do, what, name=what)
        run.sleep("1h")

    with bus.testing() as test:
        id = bus.workflows.start("w")
        test.run()
        if ends:
            test.advance("2h")
        assert [one.name for one in bus.workflows.replay(id)] == ["charge", "ship", "sleep"]
        order.reverse()
        with pytest.raises(Diverged, match="'charge'"):
            bus.workflows.replay(id)
        assert done == ["charge", "ship"], "nothing was done again"


def test_g2_a_directory_of_histories_is_replayed(tmp_path: Path) -> None:
    """G2: as a test of code that is about to be deployed; what diverges is told all at once."""
    done: list[str] = []

    def app(*, swapped: bool) -> Bus:
        bus, order = Bus(tmp_path / "data"), ["ship", "charge"] if swapped else ["charge", "ship"]

        @bus.workflow(name="w")
        def w(run: Run, body: str) -> None:
            for what in order if body == "long" else order[:0]:
                run.step(done.append, what, name=what)
            run.sleep("1h")

        return bus

    old = app(swapped=False)
    old.workflow(name="gone")(lambda run: run.step(done.append, "gone", name="gone"))
    with old.testing(tmp_path / "data") as test:
        for number in range(2):
            old.workflows.start("w", "long", id=f"long-{number}")
        old.workflows.start("w", "short")
        old.workflows.start("gone")
        test.run()
    before = list(done)
    assert replay_histories(app(swapped=False), tmp_path / "data") == 3
    with pytest.raises(Diverged, match="2 of 3 runs") as caught:
        replay_histories(app(swapped=True), tmp_path / "data", workflow="w")
    assert "long-0" in str(caught.value)
    assert "long-1" in str(caught.value)
    assert done == before, "nothing was done again"


@pytest.mark.parametrize("executor", ["threads", "asyncio"])
def test_g5_progress_is_seen_while_a_handler_runs_and_costs_no_record(executor: str) -> None:
    bus, told, go_on = Bus(), threading.Event(), threading.Event()

    def work(context: Context) -> None:
        for done in range(1000):
            context.progress(done, 1000, f"row {done}")
        told.set()
        go_on.wait(60)

    async def work_async(context: Context) -> None:
        work(context)

    bus.subscribe("x", queue="q")(work if executor == "threads" else work_async)
    with running(bus):
        id = bus.publish("x")
        assert told.wait(60)
        before = sum(map(len, bus.broker.spectate().events()))
        progress = bus.status(id).queues["q"].progress
        assert progress is not None
        assert (progress.done, progress.total, progress.note) == (999, 1000, "row 999")
        assert sum(map(len, bus.broker.spectate().events())) == before == 1
        go_on.set()


def test_g5_progress_is_a_number() -> None:
    bus, errors = Bus(), list[str]()

    @bus.subscribe("x", queue="q")
    def work(context: Context) -> None:
        for wrong in ("half", True, float("nan"), None):
            with pytest.raises(InvalidOption) as found:
                context.progress(wrong)  # type: ignore[arg-type]
            errors.append(str(found.value))

    with bus.testing() as test:
        test.publish("x")
        test.run()
    assert len(errors) == 4


def test_g6_results_come_as_they_end() -> None:
    bus = Bus()

    @bus.subscribe("x", queue="q", retry="never", keep_result=True)
    def work(n: int) -> int:
        if n == 2:
            raise ValueError("two")
        return n * 10

    with bus:
        ids = bus.publish_many("x", range(4))
        late = bus.publish("x", 9, delay="1h")
        runner = threading.Thread(target=lambda: bus.run(until_idle=True))
        runner.start()
        found = dict(bus.results([*ids, late], timeout="2s"))
        runner.join()
        assert [found[id] for id in ids if id != ids[2]] == [0, 10, 30]
        assert isinstance(found[ids[2]], HandlerFailed)
        assert isinstance(found[late], ResultNotReady)
        with pytest.raises(InvalidOption):
            bus.results("one id")


def test_g4_g6_coroutines_follow_runs_and_collect_results() -> None:
    bus = Bus()

    @bus.subscribe("double", queue="double", keep_result=True)
    async def double(n: int) -> int:
        return 2 * n

    @bus.workflow(name="w")
    async def w(run: Run, n: int) -> Any:
        return await run.call("double", n)

    async def scene() -> None:
        async with bus:
            id = await bus.workflows.start_async("w", 4)
            assert await bus.workflows.result_async(id, int, timeout="60s") == 8
            assert [one.kind for one in await bus.workflows.tree_async(id)] == ["call", "member"]
            ids = [await bus.publish_async("double", n) for n in range(3)]
            assert await bus.result_async(ids[0], timeout="60s") == 0
            found = {id: one async for id, one in bus.results_async(ids, timeout="60s")}
            assert [found[id] for id in ids] == [0, 2, 4]
            held = await bus.publish_async("double", 1, delay="1h")
            with pytest.raises(ResultNotReady):
                await bus.result_async(held)

    asyncio.run(scene())
