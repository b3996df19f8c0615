"""What RabbitMQ cannot take now, as while a node of its cluster is away, is sent again within the publish's time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Timer

import pytest

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.broker.opening import open_broker
from remuda.model.errors import PartlyRefused, Refused
from remuda.model.message import Message
from remuda.model.operations.results import Receipt


@pytest.fixture
def channel(clean_url: str) -> Iterator[Channel]:
    """A queue that somebody else has made: nobody here knows why it refuses."""
    with Connection(clean_url) as connection:
        channel = connection.channel()
        arguments = {"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"}
        channel.declare_queue("narrow", arguments=arguments)
        yield channel
        channel.delete_queue("narrow")


def test_o2_a_publish_that_is_refused_for_a_while_arrives(clean_url: str, channel: Channel) -> None:
    """Q4, O2: the caller waits for it, and is not told of the first refusals."""
    with open_broker(clean_url + "?queue_type=classic&existing=use&log=no") as broker:
        broker.create_queue("narrow", type="pull")
        broker.publish(Message("narrow", b"first"), queue="narrow")
        room = Timer(0.5, lambda: channel.get("narrow", no_ack=True))
        room.start()
        began = time.monotonic()
        broker.publish(Message("narrow", b"second"), queue="narrow")
        assert time.monotonic() - began >= 0.4
        room.join()
        delivery = broker.pull("narrow", timeout=10)
        assert delivery is not None
        assert delivery.bodies == [b"second"]
        delivery.ack()


def test_q4_a_publish_that_stays_refused_is_told_in_its_time(clean_url: str, channel: Channel) -> None:
    """Q4: also those of a batch that did arrive are told apart."""
    with open_broker(clean_url + "?queue_type=classic&existing=use&log=no&reply_timeout=2s") as broker:
        broker.create_queue("narrow", type="pull")
        with pytest.raises(PartlyRefused) as raised:
            broker.publish([Message("narrow", b"first"), Message("narrow", b"second")], queue="narrow")
        receipt = raised.value.receipt
        assert isinstance(receipt, Receipt)
        assert list(receipt.refusals) == [1]
        began = time.monotonic()
        with pytest.raises(Refused, match="a queue cannot take it now"):
            broker.publish(Message("narrow", b"third"), queue="narrow")
        assert time.monotonic() - began < 20
