"""The journal of definitions: whoever reads it leaves it as it was."""

from __future__ import annotations

import time

import pytest

from remuda import open_broker
from remuda.amqp.client.connection import Connection
from remuda.amqp.connection_options import parse_url
from remuda.broker.rabbitmq.shared_state import definitions_journal
from remuda.broker.rabbitmq.shared_state.definitions_journal import CHANGES
from tests.bus.kit import eventually


def test_reading_definitions_adds_none(clean_url: str) -> None:
    with open_broker(clean_url) as broker:
        broker.create_queue("orders")
    with Connection(clean_url) as connection:
        channel = connection.channel()
        before = channel.declare_queue(CHANGES, passive=True).message_count
        for _ in range(3):
            with open_broker(clean_url) as broker:
                assert "orders" in [info.name for info in broker.queues()]
        eventually(lambda: channel.declare_queue(CHANGES, passive=True).message_count == before, 30)


def test_a_journal_that_tells_of_nothing_any_more_is_written_anew_at_once(
    clean_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last queue is removed when most of the journal is superfluous: then there is nothing to write, nor to wait
    for."""
    monkeypatch.setattr(definitions_journal, "SUPERFLUOUS", 3)
    with open_broker(f"{clean_url}?log=no") as broker, Connection(clean_url) as connection:
        channel = connection.channel()
        began = time.monotonic()
        for name in ("a", "b", "c"):
            broker.create_queue(name)
            broker.remove_queue(name)
        assert time.monotonic() - began < parse_url(clean_url).reply_timeout
        eventually(lambda: channel.declare_queue(CHANGES, passive=True).message_count <= 4, 30)
