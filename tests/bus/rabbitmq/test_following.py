"""G5, G6, B20: following handlers and collecting results on RabbitMQ; what it cannot keep is refused by name."""

from __future__ import annotations

import time
from typing import Any

import pytest

from remuda import Bus, Context, HandlerFailed, Unsupported
from tests.bus.kit import eventually
from tests.bus.rabbitmq.conftest import MakeBus

SOON = 60.0


@pytest.fixture
def bus(make_bus_here: MakeBus) -> Bus:
    return make_bus_here()


def test_g5_progress_is_told_and_a_running_message_is_cancelled(bus: Bus) -> None:
    ended: list[str] = []

    @bus.subscribe("import", queue="import", retry="never")
    def work(context: Context) -> None:
        context.progress(3, 9, "page 3 of 9")
        try:
            for _ in range(6_000):
                time.sleep(0.01)
        finally:
            ended.append("interrupted")

    def noted() -> Any:
        return bus.status(published).queues["import"].progress

    bus.start()
    published = bus.publish("import")
    eventually(lambda: noted() is not None, SOON)
    assert (noted().done, noted().total, noted().note) == (3, 9, "page 3 of 9")
    assert bus.cancel(published)
    eventually(lambda: ended == ["interrupted"], SOON)


def test_g6_results_of_many_come_as_they_end(bus: Bus) -> None:
    @bus.subscribe("x", queue="x", retry="never", keep_result=True)
    def work(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        return number * 10

    bus.start()
    ids = bus.publish_many("x", range(4))
    found = dict(bus.results(ids, timeout=SOON))
    assert [found[id] for id in ids if id != ids[2]] == [0, 10, 30]
    assert isinstance(found[ids[2]], HandlerFailed)


def test_g1_g2_what_needs_notes_is_refused_by_name(make_bus_here: MakeBus) -> None:
    def workflow(bus: Bus) -> None:
        bus.workflow(name="w")(lambda run: None)

    for prepare in (workflow, lambda bus: bus.workflows.enable()):
        bus = make_bus_here()
        prepare(bus)
        with pytest.raises(Unsupported, match="notes"):
            bus.start()
