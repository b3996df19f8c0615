"""G2, G3: durable functions, in a test's own time."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from remuda import Bus, Run
from remuda.bus.workflows.errors import StepFailed, WaitTimeout
from remuda.model.errors import Conflict, InvalidOption, NotFound
from tests.bus.kit import running

Made = list[Any]


class Shop:
    """A bus with the effects of its steps."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.made: Made = []

    def do(self, what: Any) -> Any:
        self.made.append(what)
        return what


def reason(bus: Bus, id: str) -> str:
    return bus.workflows.status(id).reason or ""


def test_g2_a_step_is_done_once_however_often_the_run_goes_on() -> None:
    shop = Shop()

    @shop.bus.workflow(name="w")
    def w(run: Run, body: int) -> list[Any]:
        first = run.step(shop.do, body)
        run.sleep("1d")
        second = run.step(shop.do, first + 1)
        run.sleep("1d")
        return [first, second, run.step(shop.do, "last")]

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start(w, 1)
        test.run()
        assert shop.made == [1]
        assert shop.bus.workflows.status(id).state == "sleeping"
        test.advance("25h")
        assert shop.made == [1, 2]
        test.advance("25h")
        assert shop.made == [1, 2, "last"]
        assert shop.bus.workflows.result(id) == [1, 2, "last"]
        status = shop.bus.workflows.status(id)
        assert status.state == "done"
        assert [one.name for one in status.steps] == ["do", "sleep", "do", "sleep", "do"]


def test_g2_coroutines_are_awaited() -> None:
    bus, made = Bus(), []

    async def add(n: int) -> int:
        await asyncio.sleep(0)
        made.append(n)
        return n

    @bus.workflow(name="w")
    async def w(run: Run, body: int) -> Any:
        a = await run.step(add, body)
        await run.sleep("1h")
        b, c = await run.gather(partial(add, 2), partial(add, 3))
        return [a, b, c, run.uuid(), await run.now()]

    with bus.testing() as test:
        id = bus.workflows.start("w", 1)
        test.advance("2h")
        assert sorted(made) == [1, 2, 3]
        assert bus.workflows.result(id)[:3] == [1, 2, 3]


def test_g2_time_and_chance_stay_as_they_were() -> None:
    bus, seen = Bus(), []

    @bus.workflow(name="w")
    def w(run: Run) -> None:
        seen.append((run.now(), run.random(), run.uuid()))
        run.sleep("1h")

    with bus.testing() as test:
        ids = [bus.workflows.start("w") for _ in range(2)]
        test.advance("3h")
        assert len(set(ids)) == 2
        assert len(seen) == 4
        assert len(set(seen)) == 2, "the same in one run, others in another"


def test_g2_a_step_that_fails_is_retried_and_holds_no_worker() -> None:
    shop = Shop()

    def flaky() -> str:
        shop.do("try")
        if shop.made.count("try") < 3:
            raise ConnectionError("away")
        return "there"

    @shop.bus.workflow(name="w", retry=["1m", "2m"])
    def w(run: Run) -> str:
        shop.do("begin")
        return str(run.step(flaky))

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        assert "ConnectionError: away" in reason(shop.bus, id)
        test.advance("59s")
        assert shop.made.count("try") == 1
        test.advance("2s")
        assert shop.made.count("try") == 2
        test.advance("2m")
        assert shop.bus.workflows.result(id) == "there"


def test_g2_a_step_that_fails_for_good_may_be_caught_and_stays_failed() -> None:
    shop = Shop()

    def bad() -> None:
        shop.do("bad")
        raise ValueError("no")

    @shop.bus.workflow(name="w", retry="never")
    def w(run: Run) -> str:
        try:
            run.step(bad)
        except StepFailed as error:
            run.sleep("1h")
            return f"{error.step} {error.error_type} {error.text}"
        return "good"

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.advance("2h")
        assert shop.bus.workflows.result(id) == "bad ValueError no"
        assert shop.made == ["bad"]


def test_g2_reprocessing_begins_with_the_step_that_failed() -> None:
    shop = Shop()
    broken = [True]

    def fragile() -> str:
        shop.do("fragile")
        if broken[0]:
            raise ValueError("no")
        return "fine"

    @shop.bus.workflow(name="w", retry="never")
    def w(run: Run) -> list[Any]:
        return [run.step(shop.do, "first"), run.step(fragile), run.step(shop.do, "last")]

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        assert shop.bus.workflows.status(id).state == "failed"
        broken[0] = False
        assert shop.bus.reprocess("workflow.w") == 1
        test.run()
        assert shop.bus.workflows.result(id) == ["first", "fine", "last"]
        assert shop.made == ["first", "fragile", "fragile", "last"]


def test_g4_restart_from_a_step() -> None:
    shop = Shop()

    def stop() -> None:
        raise ValueError("stop")

    @shop.bus.workflow(name="w", retry="never")
    def w(run: Run) -> Any:
        run.step(shop.do, 1, name="one")
        run.step(shop.do, 2, name="two")
        return run.step(stop)

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        shop.bus.workflows.restart(id, step="two")
        test.run()
        assert shop.made == [1, 2, 2]
        with pytest.raises(NotFound, match="one, two, stop"):
            shop.bus.workflows.restart(id, step="three")


def test_g2_changed_code_is_noticed_at_the_first_step_that_differs() -> None:
    shop = Shop()
    steps = ["charge", "ship"]

    @shop.bus.workflow(name="w")
    def w(run: Run) -> None:
        for name in steps:
            run.step(shop.do, name, name=name)
        run.sleep("1h")

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        steps.insert(1, "check")
        test.advance("2h")
        text = reason(shop.bus, id)
        assert shop.bus.workflows.status(id).state == "failed"
        for part in ("step 1", "'ship'", "'check'", "test_durable.py", "version=2"):
            assert part in text
        assert shop.made == ["charge", "ship"], "nothing was done"
        steps.remove("check")
        shop.bus.reprocess("workflow.w")
        test.advance("2h")
        assert shop.bus.workflows.status(id).state == "done"
        assert shop.made == ["charge", "ship"]


def test_g2_old_runs_go_on_with_their_version() -> None:
    shop = Shop()

    def one(run: Run) -> str:
        run.step(shop.do, "old")
        run.sleep("1h")
        return "old"

    shop.bus.workflow(name="w")(one)
    with shop.bus.testing() as test:
        old = shop.bus.workflows.start("w")
        test.run()

        def two(run: Run) -> str:
            return str(run.step(shop.do, "new"))

        shop.bus.workflow(name="w", version=2)(two)
        new = shop.bus.workflows.start("w")
        test.advance("2h")
        assert shop.bus.workflows.result(old) == "old"
        assert shop.bus.workflows.result(new) == "new"
        assert (shop.bus.workflows.status(old).version, shop.bus.workflows.status(new).version) == (1, 2)


def test_g2_a_message_that_came_before_the_wait_counts() -> None:
    bus = Bus()

    @bus.workflow(name="w", waits_for="approved")
    def w(run: Run, key: str) -> Any:
        run.sleep("1h")
        try:
            return run.wait_for("approved", key=key, timeout="1d")
        except WaitTimeout:
            return "nobody"

    with bus.testing() as test:
        test.publish("approved", "too early", key="a")
        test.run()
        early, late, never = (bus.workflows.start("w", key) for key in "abc")
        test.run()
        test.publish("approved", "while it slept", key="a")
        test.advance("2h")
        assert bus.workflows.result(early) == "while it slept"
        test.publish("approved", "after", key="b")
        test.advance("1m")
        assert bus.workflows.result(late) == "after"
        test.advance("2d")
        assert bus.workflows.result(never) == "nobody"


def test_g2_each_message_goes_to_one_wait() -> None:
    bus = Bus()

    @bus.workflow(name="w", waits_for="token")
    def w(run: Run) -> list[Any]:
        return [run.wait_for("token"), run.wait_for("token")]

    with bus.testing() as test:
        ids = [bus.workflows.start("w") for _ in range(3)]
        test.run()
        for number in range(6):
            test.publish("token", number)
            test.run()
        got = [one for id in ids for one in bus.workflows.result(id)]
        assert sorted(got) == list(range(6))


def test_g2_what_a_run_waits_for_is_declared() -> None:
    bus = Bus()

    @bus.workflow(name="w")
    def w(run: Run) -> None:
        run.wait_for("approved")

    with bus.testing() as test:
        id = bus.workflows.start("w")
        test.run()
        assert "waits_for=('approved',)" in reason(bus, id)


def test_g2_publish_is_exactly_once_and_call_waits_for_the_answer() -> None:
    bus, got = Bus(), []

    @bus.subscribe("double")
    def double(n: int) -> int:
        return 2 * n

    @bus.subscribe("bad", retry="never")
    def bad(n: int) -> None:
        raise ValueError("odd")

    @bus.subscribe("news")
    def news(text: str) -> None:
        got.append(text)

    @bus.workflow(name="w")
    def w(run: Run) -> Any:
        run.publish("news", "begun")
        value = run.call("double", 4)
        try:
            run.call("bad", 1)
        except StepFailed as error:
            value = [value, error.error_type, error.text]
        run.sleep("1h")
        return value

    with bus.testing() as test:
        id = bus.workflows.start("w")
        test.advance("2h")
        assert bus.workflows.result(id) == [8, "ValueError", "ValueError: odd"]
        assert got == ["begun"]


def test_g2_a_message_that_is_cancelled_or_expires_is_told() -> None:
    bus = Bus()

    @bus.workflow(name="w")
    def w(run: Run) -> list[Any]:
        told: list[Any] = []
        for options in ({"expires": "1m"}, {"id": "mine"}):
            try:
                run.call("nobody", 1, **options)
            except StepFailed as error:
                told.append(error.error_type)
        return told

    @bus.subscribe("nobody")
    def nobody(n: int) -> None: ...

    with bus.testing() as test:
        test.queue("workflow.w")
        bus.broker.pause(next(one.queue for one in bus.handlers if one.id.endswith("nobody")))
        id = bus.workflows.start("w")
        test.advance("2m")
        assert bus.cancel("mine") == 1
        test.advance("2m")
        assert bus.workflows.result(id) == ["Expired", "Ended"]


def test_g3_undos_run_in_reverse_and_are_durable() -> None:
    shop = Shop()
    away = [True]

    def refund(value: Any) -> None:
        shop.do(f"undo {value}")
        if value == "b" and away[0]:
            away[0] = False
            raise ConnectionError("bank")

    @shop.bus.workflow(name="w", retry=["1m"])
    def w(run: Run) -> None:
        for name in "abc":
            run.step(shop.do, name, undo=refund if name != "c" else None)
        run.sleep("1h")
        raise RuntimeError("out of stock")

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.advance("2h")
        assert shop.made == ["a", "b", "c", "undo b", "undo b", "undo a"]
        assert shop.bus.workflows.status(id).state == "failed"
        assert reason(shop.bus, id) == "RuntimeError: out of stock. Undone: do, do"


def test_g3_what_cannot_be_undone_is_kept_with_its_story() -> None:
    shop = Shop()
    broken = [True]

    def refund(value: Any) -> None:
        if value == "b" and broken[0]:
            raise ConnectionError("bank")
        shop.do(f"undo {value}")

    @shop.bus.workflow(name="w", retry="never")
    def w(run: Run) -> None:
        for name in "abc":
            run.step(shop.do, name, name=name, undo=refund)
        raise RuntimeError("no")

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        text = reason(shop.bus, id)
        assert "RuntimeError: no. Undone: c. Not undone: b" in text
        assert "ConnectionError: bank" in text
        broken[0] = False
        shop.bus.reprocess("workflow.w")
        test.run()
        assert shop.made == ["a", "b", "c", "undo c", "undo b", "undo a"]
        assert reason(shop.bus, id) == "RuntimeError: no. Undone: c, b, a"


@pytest.mark.parametrize("undo", [True, False])
def test_g4_cancel_with_and_without_undo(undo: bool) -> None:
    shop = Shop()

    @shop.bus.workflow(name="w")
    def w(run: Run) -> None:
        run.step(shop.do, "a", undo=lambda value: shop.do("undone"))
        try:
            run.sleep("30d")
        except Exception:
            shop.do("swallowed")

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        assert shop.bus.workflows.cancel(id, undo=undo, who="ann")
        test.run()
        assert shop.made == ["a", "undone"] if undo else ["a"]
        status = shop.bus.workflows.status(id)
        assert status.state == "cancelled"
        assert "cancelled by ann" in (status.reason or "")
        assert not shop.bus.workflows.cancel(id)


def test_g4_an_id_starts_a_run_once() -> None:
    shop = Shop()

    @shop.bus.workflow("order.placed", name="w")
    def w(run: Run, body: Any) -> Any:
        return run.step(shop.do, body)

    with shop.bus.testing() as test:
        assert {shop.bus.workflows.start(w, 1, id="mine") for _ in range(3)} == {"mine"}
        test.publish("order.placed", 2)
        test.run()
        assert shop.made == [1, 2]
        with pytest.raises(NotFound):
            shop.bus.workflows.status("unknown")


def test_g2_what_a_step_returns_is_what_will_be_replayed() -> None:
    bus, seen = Bus(), []

    @bus.workflow(name="w")
    def w(run: Run) -> None:
        seen.append(run.step(lambda: (1, 2), name="pair"))
        run.sleep("1h")

    with bus.testing() as test:
        bus.workflows.start("w")
        test.advance("2h")
        assert seen == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"version": 0}, "version"), ({"name": ""}, "name"), ({"waits_for": "a.*"}, "wildcards"),
        ({"colour": 1}, "colour"),
    ],
)  # fmt: skip
def test_g2_wrong_declarations_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises((InvalidOption, TypeError), match=text):

        @Bus().workflow(**given)
        def w(run: Run) -> None: ...


def test_g2_two_of_a_version_and_mixed_kinds_are_refused() -> None:
    bus = Bus()
    bus.workflow(name="w")(lambda run: None)
    with pytest.raises(InvalidOption, match="version 1 already"):
        bus.workflow(name="w")(lambda run: None)

    async def other(run: Run) -> None: ...

    with pytest.raises(InvalidOption, match="coroutines"):
        bus.workflow(name="w", version=2)(other)


@pytest.mark.parametrize("before", [True, False], ids=["inserted", "removed"])
def test_g2_chance_that_comes_or_goes_is_changed_code(before: bool) -> None:
    """What is not recorded has a number too: a step behind it must not be done a second time."""
    shop, chance = Shop(), [not before]

    @shop.bus.workflow(name="w")
    def w(run: Run) -> None:
        run.step(shop.do, "charge")
        if chance[0]:
            run.uuid()
        run.step(shop.do, "ship")
        run.sleep("1h")

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        chance[0] = before
        test.advance("2h")
        assert "Diverged" in reason(shop.bus, id)
        assert shop.made == ["charge", "ship"]
        chance[0] = not before
        shop.bus.reprocess("workflow.w")
        test.run()
        assert shop.bus.workflows.status(id).state == "done"


def test_g2_what_the_function_makes_of_changed_code_undoes_nothing() -> None:
    shop, name = Shop(), ["charge"]

    @shop.bus.workflow(name="w")
    def w(run: Run) -> None:
        try:
            run.step(shop.do, "a", name=name[0], undo=lambda value: shop.do("undone"))
            run.step(shop.do, "b", name=name[0])
            run.sleep("1h")
        except Exception as error:
            raise RuntimeError("wrapped") from error

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        name[0] = "other"
        test.advance("2h")
        assert "Diverged: step 0" in reason(shop.bus, id)
        assert shop.made == ["a", "b"]


def test_g2_a_wait_that_the_function_swallows_still_holds() -> None:
    shop = Shop()

    @shop.bus.workflow(name="w")
    def w(run: Run) -> str:
        try:
            run.sleep("1h")
        except:  # noqa: E722
            return "early"
        return "in time"

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        assert shop.bus.workflows.status(id).state == "sleeping"
        test.advance("2h")
        assert shop.bus.workflows.result(id) == "in time"


def test_g2_a_step_whose_result_cannot_be_recorded_is_done_once_and_the_others_are_undone() -> None:
    shop = Shop()

    def odd() -> object:
        shop.do("odd")
        return object()

    @shop.bus.workflow(name="w")
    def w(run: Run) -> None:
        run.step(shop.do, "a", undo=lambda value: shop.do(f"undo {value}"))
        run.step(odd)

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.advance("2d")
        assert shop.made == ["a", "odd", "undo a"]
        assert "cannot be recorded" in reason(shop.bus, id)


def test_g2_a_step_in_a_step_is_refused() -> None:
    bus = Bus()

    @bus.workflow(name="w")
    def w(run: Run) -> Any:
        return run.step(lambda: run.step(lambda: 1), name="outer")

    @bus.workflow(name="a")
    async def a(run: Run) -> Any:
        async def outer() -> Any:
            return await run.step(lambda: 1)

        return await run.step(outer)

    with bus.testing() as test:
        ids = [bus.workflows.start(name) for name in "wa"]
        test.run()
        assert all("inside a step" in reason(bus, id) for id in ids)


def test_g2_replaying_says_whether_a_recorded_step_comes() -> None:
    bus, logged = Bus(), list[str]()

    @bus.workflow(name="w")
    def w(run: Run) -> None:
        for name in ("first", "second"):
            if not run.replaying:
                logged.append(name)
            run.uuid()
            run.step(lambda: None, name=name)
        run.sleep("1h")

    with bus.testing() as test:
        bus.workflows.start("w")
        test.advance("2h")
        assert logged == ["first", "second"]


@pytest.mark.parametrize("kind", ["function", "coroutine", "function in a coroutine", "process"])
def test_g2_a_step_whose_time_is_up_is_interrupted(kind: str) -> None:
    bus = Bus()
    if kind in ("function", "process"):
        bus.workflow(name="w", executor="threads" if kind == "function" else "processes")(hanging)
    else:
        step = spin if kind == "function in a coroutine" else asyncio.sleep

        @bus.workflow(name="w", retry="never")
        async def w(run: Run) -> str:
            try:
                await run.step(step, 60, timeout="50ms")
            except StepFailed as error:
                return error.text
            return "it ended"

    with running(bus):
        id = bus.workflows.start("w")
        assert bus.workflows.result(id, timeout="40s") == "it took longer than 0.05 s"


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


def hanging(run: Run) -> str:
    try:
        run.step(spin, 60, timeout="50ms", retry="never")
    except StepFailed as error:
        return error.text
    return "it ended"


def test_g3_a_run_that_is_undone_is_not_cancelled_and_begins_again_with_what_was_undone() -> None:
    shop, away, fails = Shop(), [True], [True]

    def refund(value: Any) -> None:
        if away[0]:
            raise ConnectionError("bank")
        shop.do(f"undo {value}")

    @shop.bus.workflow(name="w", retry=["1m"])
    def w(run: Run) -> str:
        for name in "abc":
            run.step(shop.do, name, name=name, undo=None if name == "a" else refund)
        if fails[0]:
            raise RuntimeError("no")
        return "shipped"

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        assert not shop.bus.workflows.cancel(id), "it is being undone"
        away[0] = False
        test.advance("2m")
        assert shop.made == ["a", "b", "c", "undo c", "undo b"]
        assert shop.bus.workflows.status(id).state == "failed"
        with pytest.raises(Conflict, match="step 1 before it was undone"):
            shop.bus.workflows.restart(id, step="c")
        fails[0] = False
        shop.bus.workflows.restart(id)
        test.run()
        assert shop.bus.workflows.result(id) == "shipped"
        assert shop.made[5:] == ["b", "c"], "what was not undone stands"


def test_g4_a_run_that_was_cancelled_and_restarted_can_be_cancelled_again() -> None:
    bus = Bus()

    @bus.workflow(name="w")
    def w(run: Run) -> None:
        run.sleep("1h")

    with bus.testing() as test:
        id = bus.workflows.start("w")
        for _ in range(2):
            test.run()
            assert bus.workflows.cancel(id)
            test.run()
            assert bus.workflows.status(id).state == "cancelled"
            bus.workflows.restart(id, step=0)
        test.advance("2h")
        assert bus.workflows.status(id).state == "done"


@pytest.mark.parametrize(
    "wrong",
    [
        "run.step(3)", "run.step(print, undo=3)", "run.step(print, name=3)", "run.publish(3)", "run.call(3)",
        "run.call('x', callback='y')", "run.group(3)", "run.group('abc')", "run.group([3])", "run.group([], name=3)",
        "run.wait_for(3)", "run.wait_for('t', key=3)", "run.wait_for('t', timeout=-1)", "run.sleep('long')",
        "run.gather(3)",
    ],
)  # fmt: skip
def test_g2_wrong_values_are_refused_before_anything_is_recorded(wrong: str) -> None:
    bus = Bus()

    @bus.workflow(name="w", waits_for="t")
    def w(run: Run) -> None:
        eval(wrong)

    with bus.testing() as test:
        id = bus.workflows.start("w")
        test.run()
        status = bus.workflows.status(id)
        assert (status.state, status.steps) == ("failed", ())
        assert (status.reason or "").startswith(("InvalidOption: ", "InvalidMessage: "))
