"""B17: who caused a message, and the trace that it belongs to."""

from __future__ import annotations

import asyncio

import pytest

from remuda import Bus, Context, Headers

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def bus() -> Bus:
    return Bus(user="service")


def chain(bus: Bus) -> dict[str, Headers]:
    """A handler that publishes, with a callback, to one that answers; the headers that arrive at each place."""
    seen: dict[str, Headers] = {}

    @bus.subscribe("first")
    def first(headers: Headers) -> str:
        seen["first"] = headers
        bus.publish("second", callback="third")
        return "done"

    @bus.subscribe("second")
    async def second(headers: Headers) -> str:
        seen["second"] = headers
        await bus.publish_async("side")
        return "done"

    @bus.subscribe("third")
    def third(headers: Headers) -> None:
        seen["third"] = headers

    @bus.subscribe("side")
    def side(headers: Headers) -> None:
        seen["side"] = headers

    return seen


def test_the_originating_user_travels_through_handlers_and_callbacks(bus: Bus) -> None:
    """B17: separate from who runs them, which is the bus's own user."""
    seen = chain(bus)
    with bus.testing() as test:
        test.publish("first", user="ann")
        test.run()
    assert {place: headers["remuda-user"] for place, headers in seen.items()} == dict.fromkeys(
        ["first", "second", "third", "side"], "ann"
    )


def test_so_does_the_trace(bus: Bus) -> None:
    """B17"""
    seen = chain(bus)
    with bus.testing() as test:
        test.publish("first", headers={"traceparent": TRACE})
        test.run()
    assert len(seen) == 4
    assert {headers["traceparent"] for headers in seen.values()} == {TRACE}


def test_without_one_the_bus_itself_is_the_cause(bus: Bus) -> None:
    """B17"""
    seen = chain(bus)
    with bus.testing() as test:
        test.publish("first")
        test.run()
    assert {headers["remuda-user"] for headers in seen.values()} == {"service"}


def test_nobody_is_invented() -> None:
    """B17"""
    bus = Bus()
    seen = chain(bus)
    with bus.testing() as test:
        test.publish("first")
        test.run()
    assert all("remuda-user" not in headers for headers in seen.values())


def test_a_handler_may_act_for_someone_else(bus: Bus) -> None:
    """B17"""
    users: list[str | None] = []

    @bus.subscribe("first")
    def first(context: Context) -> None:
        bus.publish("second", user="ben")

    @bus.subscribe("second")
    def second(context: Context) -> None:
        users.append(context.user)

    with bus.testing() as test:
        test.publish("first", user="ann")
        test.run()
    assert users == ["ben"]


def test_what_is_published_outside_of_handlers_is_linked_to_nothing(bus: Bus) -> None:
    """B17"""
    seen = chain(bus)
    with bus.testing() as test:
        test.publish("first", user="ann")
        test.run()
        test.publish("third")
        test.run()
    assert seen["third"]["remuda-user"] == "service"
    assert "cap-corr-id" not in seen["third"]


def test_it_follows_into_tasks_and_threads_that_a_coroutine_starts(bus: Bus) -> None:
    """B17"""
    parents: list[str] = []

    @bus.subscribe("first")
    async def first(body: object) -> None:
        await asyncio.gather(bus.publish_async("second"), asyncio.to_thread(bus.publish, "second"))

    @bus.subscribe("second")
    def second(headers: Headers) -> None:
        parents.append(headers["cap-corr-id"])

    with bus.testing() as test:
        message = test.publish("first")
        test.run()
    assert parents == [message, message]
