"""Arguments of declarations, refused in RabbitMQ's words (S1). Every text here was said by RabbitMQ 3.10."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.amqp.codec.tables import Int64, Table, Timestamp, UInt8
from remuda.server.amqp.declarations.exchanges import check_arguments as check_exchange
from remuda.server.amqp.declarations.queues import QueueDeclaration, check_arguments, check_equivalent, options_of
from remuda.server.amqp.protocol.failures import Failure, reply_text
from remuda.server.amqp.protocol.vhosts import VHost


def refusal(arguments: Table, *, exclusive: bool = False) -> str | None:
    declaration = QueueDeclaration(durable=True, exclusive=exclusive, arguments=arguments)
    try:
        check_arguments("q", "/", declaration, arguments)
    except Failure as failure:
        return failure.text.removeprefix("PRECONDITION_FAILED - ")  # 406
    return None


@pytest.mark.parametrize(
    ("argument", "value", "why"),
    [
        ("x-message-ttl", "a", '"expected integer, got longstr"'),
        ("x-message-ttl", True, '"expected integer, got bool"'),
        ("x-message-ttl", 1.5, '"expected integer, got double"'),
        ("x-message-ttl", None, '"expected integer, got void"'),
        ("x-message-ttl", [1], '"expected integer, got array"'),
        ("x-message-ttl", {}, '"expected integer, got table"'),
        ("x-message-ttl", b"x", '"expected integer, got binary"'),
        ("x-message-ttl", Timestamp(5), '"expected integer, got timestamp"'),
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", 315_360_000_001, "{value_too_large,315360000001}"),
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", 315_360_000_001, "{value_too_large,315360000001}"),
        ("x-max-length", "a", '"expected integer, got longstr"'),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-dead-letter-routing-key", 1, "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-overflow", 1, "{unacceptable_type,signedint}"),
        ("x-overflow", "explode", "invalid_overflow"),
        ("x-queue-type", True, "{unacceptable_type,bool}"),
        ("x-queue-type", "fancy", "\"unsupported queue type 'fancy'\""),
        ("x-queue-mode", "odd", "\"unsupported queue mode 'odd'\""),
        ("x-queue-leader-locator", "odd", "invalid_queue_locator_arg"),
        ("x-dead-letter-strategy", "odd", "invalid_dlx_strategy"),
        ("x-quorum-initial-group-size", 0, "{value_zero,0}"),
        ("x-single-active-consumer", 1, "{unacceptable_type,signedint}"),
    ],
)
def test_wrong_values_are_refused_in_the_words_of_rabbitmq(argument: str, value: Any, why: str) -> None:
    """S1."""
    assert refusal({argument: value}) == f"invalid arg '{argument}' for queue 'q' in vhost '/': {why}"


def test_other_refusals_have_their_own_words() -> None:
    """S1."""
    assert refusal({"x-dead-letter-exchange": 1}) == (
        "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
    )
    assert refusal({"x-max-age": "1D"}) == (
        "invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"
    )
    quorum: Table = {"x-queue-type": "quorum"}
    assert refusal({**quorum, "x-stream-max-segment-size-bytes": 5}) == (
        "invalid arg 'x-stream-max-segment-size-bytes' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"
    )
    assert refusal(quorum, exclusive=True) == "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"
    with pytest.raises(Failure) as caught:
        check_exchange("x", "/", "topic", {"alternate-exchange": 5})
    assert caught.value.text == (
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": 315_360_000_000}, {"x-message-ttl": UInt8(3)}, {"x-max-length": 1 << 60},
        {"x-max-length-bytes": 1 << 62}, {"x-queue-type": "quorum", "x-delivery-limit": -1},
        {"x-queue-type": "quorum", "x-overflow": "reject-publish-dlx"}, {"x-consumer-timeout": 0},
        {"x-queue-type": "quorum", "x-queue-leader-locator": "balanced", "x-quorum-initial-group-size": 3},
        {"x-queue-mode": "lazy"}, {"x-queue-version": 2}, {"x-unknown": {"a": [1]}},
    ],
)  # fmt: skip
def test_what_rabbitmq_takes_is_taken(arguments: Table) -> None:
    """S1."""
    assert refusal(arguments) is None
    options_of(VHost("/"), "q", QueueDeclaration(durable=True, arguments=arguments), 1800)


def test_a_delivery_limit_below_0_is_none() -> None:
    """S1: so that clients of RabbitMQ 4 turn its own limit off."""
    assert QueueDeclaration(arguments={"x-delivery-limit": -1}).delivery_limit is None
    assert QueueDeclaration(arguments={"x-delivery-limit": 0}).delivery_limit == 0


@pytest.mark.parametrize(
    ("asked", "standing", "text"),
    [
        ({"x-message-ttl": 6000}, {"x-message-ttl": 5000}, "received '6000' but current is '5000'"),
        ({"x-message-ttl": 6000}, {}, "received the value '6000' of type 'signedint' but current is none"),
        ({"x-message-ttl": 1 << 33}, {}, "received the value '8589934592' of type 'long' but current is none"),
        ({}, {"x-overflow": "drop-head"}, "received none but current is the value 'drop-head' of type 'longstr'"),
        (
            {"x-single-active-consumer": False}, {"x-single-active-consumer": True},
            "received 'false' but current is 'true'",
        ),
    ],
)  # fmt: skip
def test_differences_are_told_in_the_words_of_rabbitmq(asked: Table, standing: Table, text: str) -> None:
    """S1."""
    with pytest.raises(Failure) as caught:
        check_equivalent("q", "/", QueueDeclaration(arguments=asked), QueueDeclaration(arguments=standing))
    (argument,) = {*asked, *standing}
    assert caught.value.text == (
        f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue 'q' in vhost '/': {text}"
    )


def test_what_rabbitmq_does_not_compare_may_differ() -> None:
    """S1."""
    standing = QueueDeclaration(arguments={"x-consumer-timeout": 50_000, "x-queue-type": "classic"})
    check_equivalent("q", "/", QueueDeclaration(arguments={"x-message-ttl": Int64(5)}), QueueDeclaration(
        arguments={"x-message-ttl": 5}
    ))  # fmt: skip
    check_equivalent("q", "/", QueueDeclaration(), standing)


@pytest.mark.parametrize("durable", [False, True])
def test_a_queue_of_another_kind_of_owner_is_locked(durable: bool) -> None:
    """S1: 405 comes before any other difference."""
    for asked in (True, False):
        with pytest.raises(Failure) as caught:
            check_equivalent(
                "q", "/", QueueDeclaration(exclusive=asked), QueueDeclaration(durable=durable, exclusive=not asked)
            )
        assert caught.value.code == 405
        assert caught.value.text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q'")


def test_texts_that_are_too_long_show_where_they_were_cut() -> None:
    """S1."""
    assert reply_text("x" * 255) == "x" * 255
    assert reply_text("x" * 256) == "x" * 252 + "..."
    assert len(reply_text("é" * 200).encode()) <= 255
