"""What the log remembers survives being written down (L1)."""

from __future__ import annotations

import msgspec
import pytest

from remuda.model.queues.options import QueueOptions, Status
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.records import (
    CONFIGURED,
    CREATED,
    Event,
    Events,
    ExchangeChange,
    QueueChange,
    Record,
)
from remuda.model.state import State


@pytest.mark.parametrize(
    "record",
    [
        Events(
            3, 99, [Event("q", State.FETCHED, 1, 5, "c", 2), Event("q", State.RETRY, 1, reason="x", due=7, ahead=True)]
        ),
        QueueChange(CREATED, "q", 5, QueueOptions.parse(type="pull", topics=["a"]), Status.NOT_INITIALIZED),
        QueueChange(CONFIGURED, "q", 5, QueueOptions(), who="ann"),
        ExchangeChange(CREATED, "r", 5, ExchangeKind.FIRST, (Binding("q", None, 3), Binding(None, "t"))),
        ExchangeChange(CONFIGURED, "r", 5),
    ],
)
def test_records_round_trip(record: Record) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=type(record)) == record


def test_an_event_of_many_neighbours_is_one_row() -> None:
    assert len(Events(0, 0, [Event("q", State.QUEUED, 0, 1_000_000)])) == 1
