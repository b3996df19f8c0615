"""The simulation can fail: each of these bugs, planted in Remuda or in its disk, is found within a few seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from remuda.core import admission, delivering
from remuda.core.flow.keyed import KeyedMessages
from remuda.core.queues.leases import Lease
from remuda.core.queues.queue import Queue
from remuda.core.queues.ready import NEVER, ReadyList, ReadyMessages, ReadyRun, Run
from remuda.core.recorder import Recorder
from remuda.core.registry import Registry
from remuda.log.log import Log
from remuda.log.tail.writer import TailWriter
from remuda.model.queues.options import LimitExceeded
from remuda.model.records import Event
from remuda.model.settlement import Settlement
from tests.simulation.disk import Content, CrashKind, SimulatedDisk
from tests.simulation.runner import Failure, play

SEEDS = 60

pytestmark = [pytest.mark.simulation, pytest.mark.source]


class LyingDisk(SimulatedDisk):
    """Says that it synced, and now and then did not."""

    def keep(self, content: Content) -> None:
        if self.random.random() < 0.9:
            content.keep()


def found(disk_for: Any = SimulatedDisk, first: int = 0, *, rules: bool = False) -> str:
    """What the first seed that fails says."""
    for seed in range(first, first + SEEDS):
        try:
            play(seed, disk_for, rules=rules)
        except Failure as failure:
            told = str(failure)
            break
    else:
        pytest.fail(f"{SEEDS} seeds found nothing")
    assert f"make simulate SEED={seed}" in told
    return told


def test_a_disk_that_lies_about_syncing_is_found() -> None:
    """L2."""
    assert re.search("L2|L3|L8", found(LyingDisk))


def test_a_log_that_does_not_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L2."""
    monkeypatch.setattr(TailWriter, "sync", lambda self: None)
    assert re.search("L2|L3", found(first=1))


def test_an_acknowledgement_that_is_not_logged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L1."""

    def forgetful(self: Recorder, queue: Queue, first: int, count: int, consumer: str | None) -> None:
        queue.complete(first, count)

    monkeypatch.setattr(Recorder, "completed", forgetful)
    assert re.search("differs from its records|are in .* hands", found())


def test_a_queue_that_delivers_expired_messages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q5."""

    def keep_all(self: ReadyMessages, now: int) -> list[ReadyRun]:
        self.soonest = NEVER
        return []

    monkeypatch.setattr(ReadyMessages, "expire", keep_all)
    assert "Q5" in found()


def test_a_deadline_that_outlives_its_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q5: a lane that ran empty went on naming the deadline of what had left it, which once stopped the broker."""
    take = ReadyList.take_first

    def forget(self: ReadyList, count: int) -> Run:
        before = self.soonest
        taken = take(self, count)
        if not self.size:
            self.soonest = before
        return taken

    monkeypatch.setattr(ReadyList, "take_first", forget)
    assert "expects an end at" in found()


def test_a_late_answer_that_settles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q3."""

    def held(queue: Queue, lease: Any, runs: Sequence[tuple[int, int]]) -> Any:
        return [piece for first, count in runs for piece in queue.flights.find(first, count)]

    def settle(registry: Registry, queue: Queue, token: int, settlement: Settlement, runs: Any) -> int:
        lease = queue.leases.get(token) or next(iter(queue.leases.values()), None)
        return 0 if lease is None else original(registry, queue, lease.token, settlement, runs)

    original = delivering.settle
    monkeypatch.setattr(delivering, "_held", held)
    monkeypatch.setattr(delivering, "settle", settle)
    assert re.search("Q3|for no reason", found())


def test_a_limit_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q6."""

    class Generous(admission._Tally):
        def __init__(self, queue: Queue, now: int) -> None:
            super().__init__(queue, now)
            self.size -= queue.options.limit_exceeded is LimitExceeded.REJECT_NEW

    monkeypatch.setattr(admission, "_Tally", Generous)
    assert re.search("Q6|QueueFull", found())


def test_a_queue_out_of_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q15."""
    take = ReadyMessages.take

    def backwards(self: ReadyMessages, count: int) -> list[ReadyRun]:
        self._order.reverse()
        try:
            return take(self, count)
        finally:
            self._order.reverse()

    monkeypatch.setattr(ReadyMessages, "take", backwards)
    assert "Q15" in found()


def test_a_key_that_counts_as_busy_for_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """F4."""
    begun = KeyedMessages.begun

    def kept(self: KeyedMessages, first: int, count: int, sign: int) -> None:
        pending = {key: key.pending for key in self.known()}
        begun(self, first, count, sign)
        for key, number in pending.items():
            key.pending = number

    monkeypatch.setattr(KeyedMessages, "begun", kept)
    assert re.search("F4|Duplicate", found(first=215, rules=True))


def test_credit_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2."""

    def keep(self: Queue, lease: Lease, names: Sequence[str], count: int) -> None:
        pass

    monkeypatch.setattr(Queue, "give_back", keep)
    assert "are free while" in found()


def test_a_move_that_also_parks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q5, B7."""
    end = Queue._end

    def park(self: Queue, event: Event, time: int, lifted: Any) -> None:
        end(self, msgspec.structs.replace(event, to=None), time, lifted)

    monkeypatch.setattr(Queue, "_end", park)
    assert "differs from its records" in found()


def test_a_hand_over_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2."""

    def forget(self: Queue, lease: Lease, name: str) -> None:
        lease.taken |= {name}

    monkeypatch.setattr(Queue, "handed_over", forget)
    assert re.search("are free while|were handed over", found())


def test_shared_credit_that_wakes_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2."""
    monkeypatch.setattr(Registry, "_spread_credit", lambda self, queue: None)
    assert "are free while" in found(first=100)  # few seeds share credit; 112 does so as it must be


def test_sealing_before_a_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """L4."""
    monkeypatch.setattr(Log, "settled_before", property(lambda self: 1 << 60))
    assert re.search("L2|L3|L4", found())


def test_the_simulated_disk_keeps_what_was_synced() -> None:
    for seed in range(200):
        disk = SimulatedDisk(Random(seed))
        file = disk.open_append("tail/a")
        file.write(b"kept")
        file.sync()
        file.write(b"perhaps")
        disk.restart(CrashKind.POWER)
        assert disk.read("tail/a")[:4] == b"kept"
