"""T1, M2: one message under several topics, with its producer's time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from remuda import Bus
from remuda.model.errors import RemudaError

MOMENT = datetime(2026, 5, 1, tzinfo=UTC)


def test_t1_a_message_goes_to_the_queues_of_all_its_topics_once(tmp_path: Path) -> None:
    with Bus(tmp_path / "data") as bus:
        heard: list[str] = []
        bus.subscribe("order.#", queue="orders")(lambda body: heard.append("orders"))
        bus.subscribe("audit.#", queue="audits")(lambda body: heard.append("audits"))
        topics = ["order.placed", "order.big", "audit.order"]
        id = bus.publish("order.placed", 1, topics=topics, timestamp=MOMENT)
        bus.publish_many("order.placed", [2, 3], topics=("audit.many",))
        bus.run(until_idle=True)
        assert sorted(heard) == ["audits", "audits", "audits", "orders"]
        document = bus.broker.message(id)
        assert (document.message.topics, document.topic_count) == (tuple(topics), 3)
        assert document.message.timestamp == round(MOMENT.timestamp() * 1e6)


@pytest.mark.parametrize(
    "wrong", [{"topics": "order"}, {"topics": [5]}, {"topics": ["a.*"]}, {"topics": 5}, {"timestamp": "now"}]
)
def test_what_is_no_topic_and_no_time_is_refused(wrong: dict[str, object]) -> None:
    with Bus() as bus:
        with pytest.raises(RemudaError):
            bus.publish("x", 1, **wrong)  # type: ignore[arg-type]
        with pytest.raises(RemudaError):
            bus.publish_many("x", [1], **wrong)  # type: ignore[arg-type]


def test_t3_b1_calls_and_schedules_are_no_news_of_what_their_topics_name() -> None:
    """Two features at once: whoever calls twice gets two answers."""
    with Bus(infer_types=["{object}.{key}.#", "{object}.#"]) as bus:
        bus.subscribe("sum.add", queue="sums")(lambda body: body + 1)
        bus.start()
        assert [bus.call("sum.add", 1, timeout="60s") for _ in range(3)] == [2, 2, 2]
        ids = [bus.publish("price.bond", 5) for _ in range(2)]
        states = [bus.broker.message(id).state.value for id in ids]
        assert states[1] == "U"
