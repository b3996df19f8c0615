"""Answers that nobody waits for go with whatever is written next, and soon in any case."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk.directory import DirectoryDisk
from remuda.log.readers.reader import Reader
from remuda.model.messages import Messages
from remuda.model.operations.commands import Publish
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with open_broker(tmp_path / "data", sync="os") as made:
        made.create_queue("orders", type="pull")
        assert isinstance(made, EmbeddedBroker)
        yield made


def completed(path: Path) -> int:
    """How many messages are told to be done in what is written by now."""
    events = Reader(DirectoryDisk(path, create=False)).events()
    return sum(event.count for record in events for event in record.rows if event.state.value == "X")


def answer(broker: EmbeddedBroker, *, wait: bool) -> None:
    broker.publish(Message("orders", b"x"))
    delivery = broker.pull("orders")
    assert delivery is not None
    assert delivery.answer(Settlement(Outcome.ACK, consumer=delivery.consumer), wait=wait) == 1


def test_an_answer_is_kept_within_a_moment(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """L2"""
    answer(broker, wait=False)
    deadline = time.monotonic() + 60
    while not completed(tmp_path / "data") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert completed(tmp_path / "data") == 1


def test_the_next_pull_keeps_it(broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.runtime._timer, "nudge", lambda wake: None)
    answer(broker, wait=False)
    assert completed(tmp_path / "data") == 0
    assert broker.pull("orders") is None
    assert completed(tmp_path / "data") == 1


def test_closing_keeps_it(broker: EmbeddedBroker, tmp_path: Path) -> None:
    answer(broker, wait=False)
    broker.close()
    assert completed(tmp_path / "data") == 1


def test_a_producer_that_waits_for_the_answer_does_not_wait_longer(broker: EmbeddedBroker) -> None:
    """Q4"""
    broker.create_queue("watched", type="pull", commit_when="acknowledged")
    assert broker.runtime._deferred == 0
    pending = broker.runtime.submit(Publish(Messages(bodies=[b"x"], name="watched")))
    broker.runtime.wait(pending.ticket)
    delivery = broker.pull("watched")
    assert delivery is not None
    delivery.answer(Settlement(Outcome.ACK, consumer=delivery.consumer), wait=False)
    assert broker.runtime._deferred == 0
    assert pending.confirmed is not None
    assert pending.confirmed.done()


def test_an_answer_that_lets_others_have_messages_needs_no_sync_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: it is written before they get them, and synced soon after."""
    syncs: list[int] = []
    datasync = os.fdatasync

    def counted(handle: int) -> None:
        syncs.append(handle)
        datasync(handle)

    with open_broker(tmp_path / "data") as made:
        made.create_queue("orders")
        consumer = made.subscribe("orders", credit=1)
        made.publish([Message("orders", b"1"), Message("orders", b"2")], queue="orders")
        first = consumer.receive("60s")
        assert first is not None
        runtime: Any = made.runtime
        monkeypatch.setattr(runtime._timer, "nudge", lambda wake: None)
        monkeypatch.setattr(os, "fdatasync", counted)
        first.answer(Settlement(Outcome.ACK, consumer=first.consumer), wait=False)
        second = consumer.receive("60s")
        assert second is not None
        assert second.bodies == [b"2"]
        assert completed(tmp_path / "data") == 1
        assert syncs == []
        while runtime.clock() < runtime._sync_by:
            time.sleep(0.01)
        runtime.tick()
        assert len(syncs) == 1
        runtime.tick()
        assert len(syncs) == 1


@pytest.fixture
def fleeting() -> Iterator[EmbeddedBroker]:
    """A broker in memory, which encodes later, and whose timer does not remind it."""
    with open_broker("memory://") as made:
        made.create_queue("orders", type="pull", queue_size=1)
        assert isinstance(made, EmbeddedBroker)
        yield made


def test_in_memory_whoever_asks_is_told_all(fleeting: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """L8: nothing is encoded when it happens, and everything is found at once."""
    runtime: Any = fleeting.runtime
    monkeypatch.setattr(runtime._timer, "nudge", lambda wake: None)
    answer(fleeting, wait=True)
    answer(fleeting, wait=False)
    log = runtime.engine.log
    assert len(log._gathered) + log._held >= 3
    assert fleeting.message(0).queues[0].state is State.COMPLETED
    assert not log._gathered
    assert not log._held
    answer(fleeting, wait=True)
    assert sum(len(record.messages.bodies) for record in fleeting.spectate().messages()) == 3


def test_in_memory_whoever_follows_is_told_soon(fleeting: EmbeddedBroker) -> None:
    """L8"""
    reader = fleeting.spectate()
    answer(fleeting, wait=True)
    deadline = time.monotonic() + 60
    while not list(reader.events()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [event.state.value for record in reader.events() for event in record.rows] == ["F", "S", "X"]


def test_in_memory_what_is_held_nowhere_else_is_read_from_what_was_gathered(
    fleeting: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q21"""
    runtime: Any = fleeting.runtime
    monkeypatch.setattr(runtime._timer, "nudge", lambda wake: None)
    monkeypatch.setattr(runtime.engine._recent, "_limit", 0)
    for number in range(3):
        fleeting.publish(Message("orders", b"%d" % number))
    found = [fleeting.pull("orders") for _ in range(3)]
    assert [delivery.bodies for delivery in found if delivery is not None] == [[b"0"], [b"1"], [b"2"]]
