"""G1: chains, groups and gather, in a test's own time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from remuda import Bus, MembersFailed, Message, Run, call, chain, gather, group
from remuda.model.errors import InvalidOption


def shop() -> Bus:
    bus = Bus()
    bus.workflows.enable()

    @bus.subscribe("add", queue="add")
    def add(n: int) -> int:
        return n + 1

    @bus.subscribe("double", queue="double")
    def double(n: int) -> int:
        return 2 * n

    @bus.subscribe("total", queue="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @bus.subscribe("bad", queue="bad", retry="never")
    def bad(n: int) -> int:
        raise ValueError(f"no {n}")

    return bus


@pytest.mark.parametrize("asynchronous", [False, True])
def test_g1_every_option_of_a_publish_counts_for_a_chain(asynchronous: bool) -> None:
    """G1"""
    bus, told = shop(), []

    @bus.subscribe("failed", queue="failures")
    def failed(message: Message) -> None:
        told.append(message.headers["cap-corr-id"])

    def publish(**options: Any) -> str:
        work = chain(call("add", 1), "bad")
        return asyncio.run(bus.publish_async(work, **options)) if asynchronous else bus.publish(work, **options)

    with bus.testing() as test:
        id = publish(failure_callback="failed", object="order", key="7", idempotency_key="once")
        stored = bus.broker.message(id).message
        assert (stored.object, stored.key) == ("order", "7")
        assert publish(idempotency_key="once") == id
        assert publish(id="mine") == publish(id="mine") == "mine"
        bus.cancel("mine")
        test.run()
        assert told == [id]
        with pytest.raises(InvalidOption, match="brings its own body"):
            publish(topics=["else"])


@pytest.mark.parametrize(
    ("work", "result"),
    [
        (chain(call("add", 1), "double", "add"), 5),
        (group(call("add", 1), call("double", 4)), [2, 8]),
        (gather(group(call("add", 1), call("double", 4)), then="total"), 10),
        (chain(call("add", 1), group("double", "add"), "total", "double"), 14),
        (gather(group(chain(call("add", 1), "double"), group(call("add", 5)), call("add", 0)), then="total"), None),
        (group(), []),
        (chain(call("add", 1), group(chain("add", "add"), group(chain("double")))), [4, [4]]),
        (chain(group(chain(call("add", 1), "add"), chain(call("double", 2), "double")), "total"), 11),
    ],
)
def test_g1_chains_and_groups_nest_and_are_published_in_one_call(work: Any, result: Any) -> None:
    bus = shop()
    with bus.testing() as test:
        id = bus.publish(work)
        test.run()
        if result is None:
            assert bus.workflows.status(id).state == "failed"
            assert "total" in (bus.workflows.status(id).reason or ""), "a list is no number"
        else:
            assert bus.workflows.result(id) == result


def test_g1_a_failure_is_part_of_the_result() -> None:
    bus = shop()
    members = (call("add", 1), call("bad", 2), call("double", 3))
    with bus.testing() as test:
        any_, two, all_ = (bus.publish(group(*members, policy=policy)) for policy in ("any", 2, "all"))
        test.run()
        assert bus.workflows.result(any_)[0] == 2
        found = bus.workflows.result(two)
        assert [found[0], found[2]] == [2, 6]
        status = bus.workflows.status(all_)
        assert status.state == "failed"
        assert "2 of 3 members" in (status.reason or "")
        assert "ValueError: no 2" in (status.reason or "")


def test_g1_in_a_workflow_with_a_policy_and_a_timeout() -> None:
    bus, seen = shop(), []

    @bus.subscribe("slow", queue="slow")
    def slow(n: int) -> int:
        return n

    @bus.workflow(name="w")
    def w(run: Run) -> Any:
        try:
            run.group([("add", 1), ("bad", 1)])
        except MembersFailed as error:
            seen.append([one.ok for one in error.results])  # type: ignore[attr-defined]
        results = run.group([("add", 1), ("slow", 2)], policy="any", timeout="1m")
        return [(one.ok, one.value) for one in results]

    with bus.testing() as test:
        bus.broker.pause("slow")
        id = bus.workflows.start("w")
        test.advance("2m")
        assert bus.workflows.result(id) == [[True, 2], [False, None]]
        assert seen[-1] == [True, False]


def test_g1_a_cancelled_member_is_told() -> None:
    bus = shop()
    with bus.testing() as test:
        bus.broker.pause("add")
        id = bus.publish(group(call("add", 1), call("double", 1), policy=1))
        other = bus.publish(group(call("add", 1), call("double", 1)))
        test.run()
        assert bus.workflows.result(id)[1] == 2
        assert bus.workflows.status(other).state == "sleeping"
        assert bus.clear("add") == 2
        test.run()
        assert "1 of 2 members" in (bus.workflows.status(other).reason or "")


def test_g1_many_members_complete_once() -> None:
    """Each costs little more than a message: it is noted on the group, and wakes it only when it is the last."""
    bus = shop()
    many = 10_000
    with bus:
        began = time.process_time()
        bus.publish_many("double", range(many))
        bus.run(until_idle=True)
        plain = time.process_time() - began
        began = time.process_time()
        id = bus.publish(gather(group(*(call("add", n) for n in range(many))), then="total"))
        bus.run(until_idle=True)
        took = time.process_time() - began
        assert bus.workflows.result(id) == sum(range(many)) + many
        fetched = [
            event
            for events in bus.broker.spectate().events()
            for event in events.rows
            if event.queue == "workflow.remuda.canvas" and event.state == "F"
        ]
        assert len(fetched) <= 4, "the group was woken for every member"
        print(f"{many} members: {took:.2f} s of CPU time; as plain messages {plain:.2f} s")


def test_g1_wrong_parts_are_refused_where_they_are_written() -> None:
    for make in (
        lambda: chain(),
        lambda: chain(3),  # type: ignore[arg-type]
        lambda: group("a", policy="most"),
        lambda: group("a", policy=2),
        lambda: gather("a", then="b"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidOption):
            make()
    with pytest.raises(InvalidOption, match="enable"):
        Bus().publish(chain("a"))
