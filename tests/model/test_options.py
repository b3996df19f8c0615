"""Q1-Q17, Q21, M8: a queue's options, their defaults, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from remuda.broker.options import BrokerOptions
from remuda.model.errors import InvalidOption
from remuda.model.queues.options import PER_TOPIC, QueueKwargs, QueueOptions, QueueType
from remuda.model.values.durations import DAY, HOUR, SECOND


@pytest.mark.parametrize(
    ("row", "option", "default"),
    [
        ("Q1", "type", "round-robin"),
        ("Q2", "acknowledge", "wait"),
        ("Q3", "acknowledge_timeout", 15 * SECOND),
        ("Q4", "commit_when", "received"),
        ("Q5", "message_timeout", 0),
        ("Q6", "message_limit", 0),
        ("Q6", "limit_exceeded", "reject-new"),
        ("Q7", "message_size_limit", 0),
        ("Q7", "client_limit", 0),
        ("Q8", "delay_between_messages", 0),
        ("Q9", "put_back", "regular"),
        ("Q9", "put_back_delay", 0),
        ("Q10", "auto_destroy", "disabled"),
        ("Q12", "unique_ids", False),
        ("Q17", "persistence", "persistent"),
        ("Q21", "queue_size", 500),
        ("M8", "confirmations", 1),
    ],
)
def test_defaults(row: str, option: str, default: object) -> None:
    assert getattr(QueueOptions(), option) == default, row


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("type", ["push", "round-robin", "pull"]),
        ("acknowledge", ["none", "just-request", "wait"]),
        ("commit_when", ["none", "received", "sent", "acknowledged"]),
        ("limit_exceeded", ["reject-new", "delete-oldest"]),
        ("put_back", ["no", "priority", "regular"]),
        ("auto_destroy", ["disabled", "no-messages", "no-consumers", "empty"]),
        ("persistence", ["persistent", "memory"]),
    ],
)
def test_the_choices_of_each_option(option: str, choices: list[str]) -> None:
    for choice in choices:
        assert getattr(QueueOptions.parse({option: choice}), option) == choice
        assert getattr(QueueOptions.parse({option: choice.replace("-", "_")}), option) == choice
    with pytest.raises(InvalidOption, match=f"{option} must be one of {', '.join(choices)}"):
        QueueOptions.parse({option: "maybe"})


def test_q5_times_are_written_as_people_do() -> None:
    options = QueueOptions.parse(message_timeout="2h", put_back_delay=0.5, acknowledge_timeout=timedelta(seconds=3))
    assert (options.message_timeout, options.put_back_delay, options.acknowledge_timeout) == (
        2 * HOUR, SECOND // 2, 3 * SECOND,
    )  # fmt: skip


def test_an_unknown_option_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidOption, match="'mesage_limit'; did you mean 'message_limit'"):
        QueueOptions.parse(mesage_limit=3)
    with pytest.raises(InvalidOption, match="the options are acknowledge, "):
        QueueOptions.parse(zzz=1)


@pytest.mark.parametrize(
    "options",
    [
        {"message_limit": -1}, {"message_limit": 1.5}, {"message_limit": "3"}, {"message_limit": True},
        {"message_limit": None}, {"acknowledge_timeout": 0}, {"acknowledge_timeout": "soon"}, {"message_timeout": -5},
        {"unique_ids": 1}, {"unique_ids": "yes"}, {"type": 3}, {"type": None}, {"expired_queue": 5},
        {"topics": "fruit"}, {"topics": [""]}, {"topics": [3]}, {"topics": 5}, {"topics": None},
        {"confirmations": 2}, {"confirmations": "per-topic", "type": "pull"}, {"confirmations": -1, "type": "push"},
    ],
)  # fmt: skip
def test_impossible_values_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        QueueOptions.parse(options)


def test_m8_confirmations_may_be_one_per_topic() -> None:
    assert QueueOptions.parse(type="push", confirmations="per-topic").confirmations == PER_TOPIC


def test_q13_changed_keeps_the_rest() -> None:
    options = QueueOptions.parse(type="pull", message_limit=3).changed({"message_limit": 4})
    assert (options.type, options.message_limit) == (QueueType.PULL, 4)


def test_t2_a_queue_with_topics_is_a_channel() -> None:
    assert QueueOptions.parse(topics=["fruit"]).is_channel
    assert not QueueOptions().is_channel


def test_options_survive_the_wire() -> None:
    options = QueueOptions.parse(type="push", confirmations=3, topics=["a", "b"], expired_queue="late")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=QueueOptions) == options


def test_l6_a_broker_keeps_successes_a_day_and_the_dead_fifteen() -> None:
    options = BrokerOptions()
    assert (options.success_retention, options.dead_retention, options.collect_interval) == (DAY, 15 * DAY, HOUR)
    assert (options.sync, options.auto_queue_creation) == ("always", True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"synk": "os"}, "did you mean 'sync'"),
        ({"sync": "never"}, "always, interval, os"),
        ({"segment_bytes": 10}, "segment_bytes"),
        ({"checkpoint_bytes": True}, "checkpoint_bytes"),
        ({"auto_queue_creation": "no"}, "auto_queue_creation"),
        ({"queue_defaults": {"tipe": "pull"}}, "did you mean 'type'"),
        ({"collect_interval": "often"}, "collect_interval"),
    ],
)
def test_impossible_broker_options_are_refused_by_name(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        BrokerOptions.parse(**options)


@pytest.mark.parametrize("worker", [-1, 1024, "three", 1.5, True])
def test_m4_an_impossible_worker_is_refused(worker: Any) -> None:
    with pytest.raises(InvalidOption, match="worker"):
        BrokerOptions.parse(worker=worker)


def test_the_options_that_a_type_checker_knows_are_those_there_are() -> None:
    """Q13"""
    assert set(QueueKwargs.__annotations__) == set(QueueOptions.__struct_fields__)
