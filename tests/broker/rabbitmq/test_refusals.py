"""What RabbitMQ has no equivalent of is refused with its name, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.model.errors import InvalidOption, QueueFull, Unsupported
from remuda.model.message import Message
from remuda.model.queues.options import QueueOptions
from remuda.model.queues.routing import Binding
from tests.broker.rabbitmq.differences import REFUSED


@pytest.fixture
def broker(clean_url: str) -> Iterator[Broker]:
    with open_broker(clean_url + "?log=no") as broker:
        yield broker


@pytest.mark.parametrize(
    ("feature", "options"),
    [
        ("type", {"type": "push"}),
        ("commit_when", {"commit_when": "sent"}),
        ("commit_when", {"commit_when": "acknowledged"}),
        ("delay_between_messages", {"delay_between_messages": "1s"}),
        ("unique_ids", {"unique_ids": True}),
        ("auto_destroy", {"auto_destroy": "empty"}),
        ("auto_destroy", {"auto_destroy": "no-messages"}),
        ("expired_queue", {"expired_queue": "late", "message_limit": 3, "limit_exceeded": "delete-oldest"}),
        ("expired_queue", {"expired_queue": "late", "byte_limit": 3, "limit_exceeded": "delete-oldest"}),
        ("ordered", {"ordered": True}),
        ("flow_key", {"flow_key": "header:tenant"}),
        ("on_retry", {"on_retry": "pass"}),
        ("concurrency", {"concurrency": 3}),
        ("concurrency_per_key", {"concurrency_per_key": 3}),
        ("limits", {"limits": {"mail": 3}}),
        ("rate", {"rate": "1/s"}),
        ("rate_per_key", {"rate_per_key": "1/s"}),
        ("fair", {"fair": True}),
        ("debounce", {"debounce": "1s"}),
        ("throttle", {"throttle": "1s"}),
        ("singleton", {"singleton": "skip"}),
    ],
)
def test_options_are_refused_by_name(broker: Broker, feature: str, options: dict[str, Any]) -> None:
    for attempt in (
        lambda: broker.create_queue("orders", **options),
        lambda: broker.publish(Message("orders", b""), options=options),
        lambda: broker.subscribe("orders", options=options),
    ):
        with pytest.raises(Unsupported, match=r"Nothing was changed") as caught:
            attempt()
        assert caught.value.feature == feature
        assert feature in REFUSED
    assert broker.queues() == []


def test_q6_a_limit_of_bytes_is_rabbitmqs_own(broker: Broker) -> None:
    """It counts the bodies of what waits; and says which limit it was."""
    broker.create_queue("orders", type="pull", byte_limit=100)

    def fill() -> None:
        for _ in range(100):  # a quorum queue takes what is on its way at the moment when it becomes full
            broker.publish(Message("orders", b"x" * 60), queue="orders")

    with pytest.raises(QueueFull, match="'orders' holds as many messages as its byte_limit allows"):
        fill()
    broker.create_queue("newest", type="pull", byte_limit=100, limit_exceeded="delete-oldest")
    for number in range(5):
        broker.publish(Message("newest", b"%d" % number * 60), queue="newest")
    delivery = broker.pull("newest", 10, timeout=60)
    assert delivery is not None
    assert delivery.bodies == [b"4" * 60]


def test_q15_a_classic_queue_takes_no_higher_priority_than_its_own(clean_url: str) -> None:
    """Messages of a higher one count as of this one, so they keep their order among themselves."""
    with open_broker(clean_url + "?log=no&queue_type=classic") as broker:
        broker.create_queue("orders", type="pull", max_priority=5)
        for priority in (1, 5, 31, 9):
            broker.publish(Message("orders", b"%d" % priority, priority=priority), queue="orders")
        seen: list[bytes] = []
        while len(seen) < 4:
            delivery = broker.pull("orders", timeout=60)
            assert delivery is not None
            seen += delivery.bodies
            delivery.ack()
        assert seen == [b"5", b"31", b"9", b"1"]


def test_every_option_of_a_queue_stands_in_the_table() -> None:
    """What is taken and has no effect would be a lie."""
    page = (Path(__file__).parents[3] / "docs" / "rabbitmq.md").read_text()
    table = page[page.index("## Every option of a queue") : page.index("## Every verb")]
    assert [name for name in QueueOptions.__struct_fields__ if f"`{name}`" not in table] == []


@pytest.mark.parametrize(
    "change",
    [
        {"message_timeout": "1s"},
        {"message_limit": 3},
        {"byte_limit": 3},
        {"max_priority": 3},
        {"persistence": "memory"},
        {"auto_destroy": "no-consumers"},
    ],
)
def test_what_a_queue_was_made_with_cannot_be_changed(broker: Broker, change: dict[str, Any]) -> None:
    broker.create_queue("orders", type="pull")
    before = broker.queue("orders").options
    with pytest.raises(Unsupported, match="RabbitMQ fixes") as caught:
        broker.configure_queue("orders", **change)
    assert caught.value.feature == next(iter(change))
    assert broker.queue("orders").options == before


@pytest.mark.parametrize(
    ("feature", "ask"),
    [
        ("newest", lambda broker: broker.pull("orders", newest=True)),
        ("group", lambda broker: broker.subscribe("orders", group="g")),
        ("priority", lambda broker: broker.subscribe("orders", priority=1)),
        ("keep", lambda broker: broker.subscribe("orders").close(keep=True)),
        (
            "routers",
            lambda broker: broker.create_router("r", "headers", [Binding(queue="orders", arguments={"a": b"bytes"})]),
        ),
        ("log", lambda broker: broker.message("1")),
        ("log", lambda broker: broker.spectate()),
    ],
)
def test_verbs_are_refused_by_name(broker: Broker, feature: str, ask: Callable[[Broker], Any]) -> None:
    broker.create_queue("orders", type="pull")
    with pytest.raises(Unsupported) as caught:
        ask(broker)
    assert caught.value.feature == feature


@pytest.mark.parametrize(
    "name", ["amq.mine", "orders.dead", "x" * 252], ids=["of RabbitMQ", "of dead letters", "too long"]
)
def test_names_that_cannot_be(broker: Broker, name: str) -> None:
    with pytest.raises(InvalidOption, match="cannot be created"):
        broker.create_queue(name)
    with pytest.raises(InvalidOption, match="cannot be created"):
        broker.create_router("gate", "first", [Binding(queue=name)])
    assert broker.queues() == []
    assert broker.routers() == {}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("queue_type=stream", "queue_type in the broker's URL must be one of quorum, classic"),
        ("max_priority=32", "max_priority in the broker's URL must be from 0 to 31"),
        ("max_priority=-1", "max_priority in the broker's URL must be from 0 to 31"),
        ("existing=maybe", "existing in the broker's URL must be use or refuse"),
        ("attempts=3", "attempts in the URL"),
        ("colour=red", "unknown option 'colour'"),
        ("queue_typ=classic", "unknown option 'queue_typ'; did you mean 'queue_type'?"),
    ],
)
def test_nonsense_in_the_url(broker_url: str, query: str, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        open_broker(f"{broker_url}?{query}")
    assert says in str(caught.value)
