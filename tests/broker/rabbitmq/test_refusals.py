"""What RabbitMQ has no equal of is refused with its name, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.model.errors import InvalidOption, Unsupported
from remuda.model.message import Message
from remuda.model.routing import Binding
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


@pytest.mark.parametrize(
    "change",
    [{"message_timeout": "1s"}, {"message_limit": 3}, {"persistence": "memory"}, {"auto_destroy": "no-consumers"}],
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
    with pytest.raises(InvalidOption, match="cannot be made"):
        broker.create_queue(name)
    with pytest.raises(InvalidOption, match="cannot be made"):
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
    ],
)
def test_nonsense_in_the_url(broker_url: str, query: str, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        open_broker(f"{broker_url}?{query}")
    assert says in str(caught.value)
