"""Every public verb with every kind of wrong value: refused by name, and the bus works on (B1, B3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from remuda import Bus, RemudaError

WRONG: Final[list[Any]] = [
    None, 5, -1, 1.5, float("nan"), b"x", "", "\ud800", "a" * 1000, "*", [], {}, object(), True, timedelta(-1),
    datetime(2026, 1, 1), abs, int, ["a"], ("a",), {"a": 1}, "1--100000000", "5 parsecs",
]  # fmt: skip
PUBLISH: Final = (
    "callback headers id object key mime_type priority delay at expires user failure_callback keep_result unique "
    "idempotency_key"
).split()
SUBSCRIBE: Final = (
    "queue group retry retry_on give_up_on timeout failover threads executor batch unique keep_result"
).split()
VERBS: Final = "status cancel result dead_letters clear forget reprocess".split()


def survives(action: Callable[[], object]) -> None:
    try:
        action()
    except (RemudaError, TypeError):
        return


def subscribe(bus: Bus, name: str, **options: Any) -> None:
    def handle(body: list[int]) -> None: ...

    handle.__qualname__ = name
    bus.subscribe("other", **options)(handle)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: repr(value)[:20].encode("ascii", "replace").decode())
def test_wrong_values_hurt_nobody(wrong: Any) -> None:
    """B1, B3"""
    bus = Bus()
    seen: list[int] = []
    bus.subscribe("x", queue="q")(lambda body: seen.append(body))
    with bus.testing() as test:
        survives(lambda: bus.publish(wrong))
        survives(lambda: bus.publish_many(wrong, wrong))
        for option in PUBLISH:
            survives(lambda option=option: bus.publish("y", 1, **{option: wrong}))  # type: ignore[misc]
        for option in SUBSCRIBE:
            survives(lambda option=option: subscribe(bus, f"h{option}", **{option: wrong}))  # type: ignore[misc]
        for verb in VERBS:
            survives(lambda verb=verb: getattr(bus, verb)(wrong))  # type: ignore[misc]
        for action in (bus.every, bus.cron, bus.subscribe_class, lambda tz: bus.cron("@daily", tz=tz)):
            survives(lambda action=action: action(wrong))  # type: ignore[misc]
        survives(lambda: bus.subscribe(wrong))
        survives(lambda: bus.subscribe("x")(wrong))
        test.publish("x", 7)
        test.run()
    assert seen == [7]
