"""G1, G2, G4: runs that go on after they failed, were cancelled or moved: what they heard before still counts."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from remuda import Bus, Context, Run, StepFailed, WaitTimeout, call, chain, group, step
from remuda.bus.execution import watchdog
from remuda.model.errors import Conflict
from tests.bus.kit import running


class Shop:
    """A bus whose handlers say what they did, and fail while they are told to."""

    def __init__(self) -> None:
        self.bus = bus = Bus()
        self.made: list[Any] = []
        self.broken = True
        bus.workflows.enable()
        bus.subscribe("add", queue="add")(self.add)
        bus.subscribe("break", queue="break", retry="never")(self.breaks)

    def add(self, n: int) -> int:
        self.made.append(n)
        return n + 1

    def breaks(self, n: int) -> int:
        self.made.append("break")
        if self.broken:
            raise ValueError("no")
        return n * 10

    def do(self, what: Any) -> Any:
        self.made.append(what)
        return what

    def undo(self, what: Any) -> None:
        self.made.append(f"undo {what}")

    def state(self, id: str) -> str:
        return self.bus.workflows.status(id).state


@pytest.mark.parametrize("again", ["restart", "reprocess"])
def test_g1_a_chain_goes_on_with_the_part_that_failed(again: str) -> None:
    shop = Shop()
    with shop.bus.testing() as test:
        id = shop.bus.publish(chain(call("add", 1), "break", "add"))
        test.run()
        assert shop.state(id) == "failed"
        shop.broken = False
        if again == "restart":
            shop.bus.workflows.restart(id)
        else:
            shop.bus.reprocess("workflow.remuda.canvas")
        test.run()
        assert shop.bus.workflows.result(id) == 21
        assert shop.made == [1, "break", "break", 20]


def test_g1_a_group_that_failed_begins_again_and_what_came_before_it_stands() -> None:
    shop = Shop()

    @shop.bus.workflow(name="w", waits_for="approved")
    def w(run: Run) -> Any:
        said = run.wait_for("approved")
        first = run.group([("add", 1), ("add", 2)])
        return [said, *(one.value for one in first + run.group([("break", 1), ("add", 3)]))]

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        test.publish("approved", "yes")
        test.run()
        assert shop.state(id) == "failed"
        shop.broken = False
        shop.bus.workflows.restart(id)
        test.run()
        assert shop.bus.workflows.result(id) == ["yes", 2, 3, 10, 4]
        assert sorted(map(str, shop.made)) == ["1", "2", "3", "3", "break", "break"]


def test_g2_a_wait_that_timed_out_begins_again_also_where_the_error_was_wrapped() -> None:
    bus = Bus()

    @bus.workflow(name="w", waits_for="approved")
    def w(run: Run) -> Any:
        try:
            return run.wait_for("approved", timeout="1h")
        except WaitTimeout:
            raise RuntimeError("nobody") from None

    with bus.testing() as test:
        id = bus.workflows.start("w")
        test.advance("2h")
        assert bus.workflows.status(id).state == "failed"
        bus.workflows.restart(id)
        test.advance("30m")
        test.publish("approved", "yes")
        test.run()
        assert bus.workflows.result(id) == "yes"
        kinds = [line.kind for line in bus.workflows.tree(id)]
        assert kinds == ["wait", "timeout", "restarted", "wait", "signal"]


def test_g2_a_failure_that_was_caught_is_not_what_a_run_begins_again_with() -> None:
    shop = Shop()

    @shop.bus.workflow(name="w", retry="never")
    def w(run: Run) -> Any:
        try:
            run.call("break", 1)
        except StepFailed:
            run.step(shop.do, "instead")
        run.step(shop.do, "next")
        return run.step(shop.breaks, 1)

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        shop.broken = False
        shop.bus.workflows.restart(id)
        test.run()
        assert shop.bus.workflows.result(id) == 10
        assert shop.made == ["break", "instead", "next", "break", "break"]


@pytest.mark.parametrize("waits", ["message", "answer"])
@pytest.mark.parametrize("where", [None, 1], ids=["where it was", "from the wait"])
def test_g4_a_run_that_was_cancelled_while_it_waited_hears_what_comes_after_its_restart(
    waits: str, where: int | None
) -> None:
    shop = Shop()

    @shop.bus.workflow(name="w", waits_for="approved")
    def w(run: Run) -> Any:
        first = run.call("add", 1)
        return [first, run.wait_for("approved", key="k") if waits == "message" else run.call("break", 2)]

    with shop.bus.testing() as test:
        shop.broken = False
        shop.bus.broker.pause("break")
        id = shop.bus.workflows.start("w")
        test.run()
        shop.bus.workflows.cancel(id)
        test.run()
        assert shop.state(id) == "cancelled"
        shop.bus.workflows.restart(id, step=where)
        test.run()
        assert shop.state(id) == "sleeping"
        shop.bus.broker.resume("break")
        shop.bus.publish("approved", "yes", key="k")
        test.run()
        assert shop.bus.workflows.result(id) == [2, "yes" if waits == "message" else 20]


def test_g4_a_message_for_a_run_that_was_cancelled_goes_to_the_next_that_waits() -> None:
    bus = Bus()

    @bus.workflow(name="w", waits_for="t")
    def w(run: Run) -> Any:
        try:
            return run.wait_for("t")
        finally:
            run.step(int, undo=str)

    with bus.testing() as test:
        gone, waits = (bus.workflows.start("w") for _ in range(2))
        test.run()
        bus.workflows.cancel(gone)
        test.publish("t", "yes")
        test.run()
        assert bus.workflows.result(waits) == "yes"


def test_g1_a_run_that_was_moved_hears_its_answers() -> None:
    shop = Shop()
    with shop.bus.testing() as test:
        shop.bus.broker.pause("add")
        shop.bus.broker.create_queue("elsewhere", type="pull")
        ids = [shop.bus.publish(chain(call("add", 1), "add")) for _ in range(2)]
        test.run()
        assert shop.bus.broker.move("workflow.remuda.canvas", "elsewhere") == 2
        shop.bus.broker.resume("add")
        test.run()
        assert shop.bus.broker.move("elsewhere", "workflow.remuda.canvas") == 2
        test.run()
        assert [shop.bus.workflows.result(id) for id in ids] == [3, 3]


def test_g1_a_member_whose_handler_sends_no_reply_is_told() -> None:
    shop = Shop()

    @shop.bus.subscribe("quiet", queue="quiet")
    def quiet(n: int, context: Context) -> int:
        context.response.remove()
        return n

    with shop.bus.testing() as test:
        id = shop.bus.publish(group(call("quiet", 1), call("add", 1), policy="any"))
        other = shop.bus.publish(chain(call("quiet", 1)))
        test.run()
        assert shop.bus.workflows.result(id)[1] == 2
        assert "NoReply" in (shop.bus.workflows.status(other).reason or "")


def test_g3_steps_side_by_side_have_options_of_their_own() -> None:
    shop = Shop()

    @shop.bus.workflow(name="w", retry="never")
    def w(run: Run) -> Any:
        run.gather(
            step(shop.do, "flight", name="flight", undo=shop.undo),
            step(shop.do, "hotel", name="hotel", undo=shop.undo),
            step(shop.breaks, 1, name="car", retry=["1m"]),
            partial(shop.do, "mail"),
        )

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.run()
        assert shop.state(id) == "sleeping", "the car is tried again"
        test.advance("2m")
        assert shop.state(id) == "failed"
        assert shop.made.count("break") == 2
        assert shop.made[-2:] == ["undo hotel", "undo flight"]
        shop.broken = False
        shop.bus.workflows.restart(id)
        test.run()
        assert shop.state(id) == "done"
        assert shop.made[-4:].count("mail") == 1


def test_g2_what_a_step_decides_counts() -> None:
    """B12 in a step: when it is tried again, or that it is not."""
    from remuda import NotNow, Reject, Retry

    shop, raised = Shop(), list[Exception]()

    def decides() -> str:
        shop.do("try")
        if raised:
            raise raised.pop(0)
        return "done"

    @shop.bus.workflow(name="w")
    def w(run: Run) -> Any:
        return run.step(decides)

    with shop.bus.testing() as test:
        raised[:] = [Retry("busy", after="5s"), NotNow("closed", after="5s"), Retry("busy", after="5s")]
        id = shop.bus.workflows.start("w")
        test.advance("16s")
        assert shop.bus.workflows.result(id) == "done"
        attempts = [one.attempt for one in shop.bus.workflows.steps(id)]
        assert attempts == [1, 2, 3], "what is not for now is no attempt"
        raised[:] = [Reject("never")]
        id = shop.bus.workflows.start("w")
        test.run()
        assert shop.state(id) == "failed"


def test_g3_a_run_that_asks_for_another_attempt_has_not_failed() -> None:
    from remuda import Retry

    shop, tries = Shop(), [1, 2]

    @shop.bus.workflow(name="w")
    def w(run: Run) -> str:
        run.step(shop.do, "a", undo=shop.undo)
        if tries:
            tries.pop()
            raise Retry(after="1m")
        return "done"

    with shop.bus.testing() as test:
        id = shop.bus.workflows.start("w")
        test.advance("3m")
        assert shop.bus.workflows.result(id) == "done"
        assert shop.made == ["a"]


def test_g4_an_id_of_something_else_is_refused() -> None:
    bus = Bus()
    for name in "vw":
        bus.workflow(name=name)(lambda run: None)

    with bus.testing():
        bus.workflows.start("v", id="mine")
        bus.publish("order.placed", id="order-7")
        for id, topic in (("mine", "workflow.v"), ("order-7", "order.placed")):
            with pytest.raises(Conflict, match=f"{topic}, so no run of w was started"):
                bus.workflows.start("w", id=id)


def test_b20_a_run_at_work_is_left_alone_whatever_topic_it_came_by() -> None:
    bus, found = Bus(prefix="shop."), list[int]()

    @bus.workflow("order.placed", name="w")
    def w(run: Run) -> None:
        run.step(lambda: found.append(bus.cancel(run.id)), name="cancels its own message")

    with bus.testing() as test:
        id = bus.publish("order.placed")
        test.run()
        assert found == [0]
        assert bus.workflows.status(id).state == "done"


def test_g2_a_run_waits_for_room_in_a_full_queue() -> None:
    shop = Shop()
    shop.bus.subscribe("small", queue="small", message_limit=1)(shop.add)

    @shop.bus.workflow(name="w")
    def w(run: Run) -> None:
        run.step(shop.do, "a", undo=shop.undo)
        run.publish("small", 1)
        run.group([("add", 1), ("small", 2)], policy="any")

    with shop.bus.testing() as test:
        shop.bus.broker.pause("small")
        shop.bus.publish("small", 0)
        id = shop.bus.workflows.start("w")
        test.run()
        assert shop.state(id) == "sleeping"
        assert "small" in (shop.bus.workflows.status(id).reason or "")
        shop.bus.broker.clear("small")
        test.advance("2s")
        assert [one.kind for one in shop.bus.workflows.status(id).steps] == ["step", "publish"]
        shop.bus.broker.clear("small")
        test.advance("2s")
        assert shop.state(id) == "done"
        assert shop.made == ["a", 1], "nothing was published twice, and nothing undone"


GO_ON = threading.Event()


def hang() -> None:
    """A call that no interrupt reaches."""
    GO_ON.wait(60)


def hanging(run: Run) -> str:
    try:
        run.step(hang)
    except StepFailed as error:
        return error.text
    return "it ended"


async def hanging_async(run: Run) -> str:
    try:
        await run.step(hang)
    except StepFailed as error:
        return error.text
    return "it ended"


@pytest.mark.parametrize(("executor", "attempts"), [("threads", 2), ("asyncio", 2), ("processes", 1)])
def test_g2_a_step_that_ignores_its_interrupt_has_failed_an_attempt(
    monkeypatch: pytest.MonkeyPatch, executor: str, attempts: int
) -> None:
    """It is not called again and again as by a worker that was lost. The timeout is that of the workflow."""
    monkeypatch.setattr(watchdog, "GRACE", 0.05)  # which a process does not hear of
    GO_ON.clear()
    bus, function = Bus(), hanging_async if executor == "asyncio" else hanging
    retry = ["1ms"] * (attempts - 1)
    bus.workflow(name="w", executor=executor, timeout="20ms", retry=retry)(function)
    try:
        with running(bus):
            id = bus.workflows.start("w")
            text = bus.workflows.result(id, timeout="40s")
            assert text == "it took longer than 0.02 s, and ignored the interrupt"
            assert [one.kind for one in bus.workflows.steps(id)] == [*["attempt"] * (attempts - 1), "step"]
    finally:
        GO_ON.set()
