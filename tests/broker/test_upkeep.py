"""Checkpoints, sealing and retention (L4, L6): in the background, and it says what it removed."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, native, open_broker
from remuda.broker import checks
from remuda.broker.embedded.upkeep import background
from remuda.broker.shared.directory.host_lock import is_held
from remuda.broker.threads import EmbeddedBroker
from remuda.log.retention.drop import closed_segments
from remuda.model.errors import BrokerClosed, DiskFull, NotFound
from remuda.model.messages import Messages
from remuda.model.settlement import Outcome, Settlement
from tests.broker.kit import DAY, HOUR, ManualClock, open_at
from tests.conformance.kit import eventually, numbered, pulled, view, waiting_bodies

SMALL = {"segment_bytes": 1 << 16, "checkpoint_bytes": 1 << 12}


def fill(broker: EmbeddedBroker, batches: int = 40) -> None:
    """Enough messages for several segments, all of them settled."""
    for number in range(batches):
        broker.publish(Messages(bodies=[b"%05d" % number + b"x" * 1000] * 10, name="orders"))
        waiting_bodies(broker)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_l6_settled_messages_stay_for_their_retention_and_then_go(tmp_path: Path, clock: ManualClock) -> None:
    # Whoever collects first removes it, so nobody but the test does.
    with open_at(tmp_path / "broker", clock, **SMALL, collect_interval="365d") as broker:
        broker.create_queue("orders", type="pull")
        fill(broker)
        clock.now += DAY - HOUR
        assert broker.collect().messages == 0
        before = size_of(tmp_path)
        clock.now += 2 * HOUR
        removed = broker.collect()
        assert removed.messages > 200
        assert removed.events > 0
        assert removed.bytes_freed > 0
        assert size_of(tmp_path) < before
        with pytest.raises(NotFound, match="it may have been collected after its retention"):
            broker.message(0)


def test_l6_what_waits_is_never_removed(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path / "broker", clock, **SMALL) as broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(5))
        held = pulled(broker, count=5)
        fill(broker)
        held.release()
        clock.now += 100 * DAY
        broker.collect()
        assert sorted(waiting_bodies(broker)) == [b"0", b"1", b"2", b"3", b"4"]
    with open_at(tmp_path / "broker", clock, **SMALL) as broker:
        assert broker.queue("orders").size == 0


def test_l6_dead_messages_stay_for_theirs(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path / "broker", clock, **SMALL) as broker:
        broker.create_queue("orders", type="pull")
        receipt = broker.publish(numbered(1))
        pulled(broker).dead(reason="broken")
        fill(broker)
        clock.now += 15 * DAY
        assert broker.collect().forgotten == 0
        assert view(broker, receipt.first).reason == "broken"
        clock.now += HOUR
        assert broker.collect().forgotten == 1
        assert broker.queue("orders").dead == 0


def test_l6_both_can_be_set(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path / "broker", clock, success_retention="1m", dead_retention="2m", **SMALL) as broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        pulled(broker).dead()
        fill(broker)
        clock.now += 90_000_000
        removed = broker.collect()
        assert removed.messages > 0
        assert removed.forgotten == 0
        clock.now += 60_000_000
        assert broker.collect().forgotten == 1


def test_l6_it_says_what_it_removed(tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    # Not by itself, which could be at it just now.
    options = {**SMALL, "collect_interval": "30d"}
    with caplog.at_level(logging.INFO, "remuda.upkeep"), open_at(tmp_path / "broker", clock, **options) as broker:
        broker.create_queue("orders", type="pull")
        fill(broker)
        clock.now += 2 * DAY
        removed = broker.collect()
        assert f"retention removed {removed.messages} messages and {removed.events} events" in caplog.text


def test_l6_the_collector_runs_by_itself(tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "remuda.upkeep"),
        open_at(tmp_path / "broker", clock, collect_interval="1m", **SMALL) as broker,
    ):
        broker.create_queue("orders", type="pull")
        fill(broker)
        clock.now += 2 * DAY
        eventually(lambda: "retention removed" in caplog.text)


def test_l6_a_memory_broker_lets_settled_messages_go(clock: ManualClock) -> None:
    with open_at("memory://", clock, **SMALL) as broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        held = pulled(broker)
        fill(broker)
        clock.now += 2 * DAY
        broker.runtime.flush()
        before = sum(broker.runtime.engine.log.disk.size(name) for name in broker.runtime.engine.log.disk.list())
        broker.collect()
        after = sum(broker.runtime.engine.log.disk.size(name) for name in broker.runtime.engine.log.disk.list())
        assert after < before / 2
        assert held.ack() == 1


def test_l4_a_checkpoint_keeps_everything(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path / "broker", clock, **SMALL) as broker:
        broker.create_queue("orders", type="pull", unique_ids=True)
        broker.publish(numbered(6))
        delivery = pulled(broker, count=4)
        delivery.ack(rows=[0])
        delivery.dead(rows=[1], reason="broken")
        delivery.retry(rows=[2], after="1h")
        broker.checkpoint()
        broker.publish(numbered(1, start=6))
    with open_at(tmp_path / "broker", clock, **SMALL) as broker:
        info = broker.queue("orders")
        assert (info.dead, info.delayed, info.waiting) == (1, 1, 4)
        assert waiting_bodies(broker) == [b"4", b"5", b"6", b"3"]


def test_l4_checkpoints_happen_by_themselves(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path / "broker", clock, **SMALL) as broker:
        broker.create_queue("orders", type="pull")
        for _ in range(20):
            broker.publish(Messages(bodies=[b"x" * 1000] * 10, name="orders"))
        log = broker.runtime.engine.log
        eventually(lambda: log.bytes_since_checkpoint < 1 << 12)


def test_sealed_messages_can_still_be_delivered_and_read(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path / "broker", clock, **SMALL) as broker:
        broker.create_queue("orders", type="pull", queue_size=10)
        for number in range(40):
            broker.publish(Messages(bodies=[b"%05d" % number + b"x" * 1000] * 10, name="orders"))
        broker.checkpoint()
        broker.runtime.upkeep.seal()
        assert list((tmp_path / "broker" / "sealed").iterdir())
        assert broker.message(5).message.body[:5] == b"00000"
        bodies = waiting_bodies(broker)
        assert [body[:5] for body in bodies] == [b"%05d" % (row // 10) for row in range(400)]


def test_l6_retention_reaches_the_open_segment_when_little_is_written(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path, clock) as broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(10))
        delivery = broker.pull("orders", 10)
        assert delivery is not None
        delivery.ack()
        assert broker.collect().messages == 0
        clock.now += 2 * DAY
        assert broker.collect().messages == 10
        broker.publish(numbered(1))
        assert [record.first for record in broker.spectate().messages()] == [10]
    with open_at(tmp_path, clock) as broker:
        assert broker.recovery.clean
        assert len(waiting_bodies(broker)) == 1


def test_l6_each_message_leaves_on_time_whatever_younger_ones_it_lies_among(tmp_path: Path, clock: ManualClock) -> None:
    """Ten a week, a late answer among them, and one that still waits: none has to wait for its neighbours."""
    with open_at(tmp_path / "broker", clock, collect_interval="365d", success_retention="1d") as broker:
        broker.create_queue("orders", type="pull")
        broker.create_queue("late", type="pull", acknowledge_timeout="10d")
        broker.publish(numbered(5, "late"))
        broker.publish(numbered(10, "orders"))
        held, late = broker.pull("orders", 10), broker.pull("late", 4)
        assert held is not None
        assert late is not None
        held.ack()
        clock.now += 18 * HOUR
        assert late.ack(rows=[1]) == 1
        broker.publish(numbered(3, "orders"))
        young = broker.pull("orders", 3)
        assert young is not None
        young.ack()

        def there() -> list[int]:
            return [
                n for record in broker.spectate().messages() for n in range(record.first, record.first + len(record))
            ]

        assert broker.collect().messages == 0
        clock.now += 12 * HOUR
        assert broker.collect().messages == 10
        assert there() == [0, 1, 2, 3, 4, 15, 16, 17]
        assert broker.collect().messages == 0
        clock.now += 13 * HOUR
        assert broker.collect().messages == 4
        assert there() == [0, 2, 3, 4]
    with open_at(tmp_path / "broker", clock) as broker:
        assert broker.recovery.clean
        assert sorted(waiting_bodies(broker, "late")) == [b"0", b"2", b"3", b"4"]


def test_l6_what_cannot_be_read_of_a_day_keeps_all_of_it(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path / "broker", clock, collect_interval="365d") as broker:
        broker.create_queue("orders", type="pull")
        for _ in range(3):
            broker.publish(numbered(5, "orders"))
            waiting_bodies(broker)
            clock.now += 10 * HOUR
            broker.runtime.engine.log.roll(clock.now)
            broker.checkpoint()
            broker.checkpoint()
            broker.runtime.upkeep.seal()
        events = sorted((tmp_path / "broker" / "sealed").glob("events-*"))
        assert len(events) == 3
        events[-1].write_bytes(b"PAR1" + bytes(200))
        assert broker.collect().messages == 0


def test_l5_sealing_waits_for_a_quiet_moment_unless_much_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sealed() -> int:
        return len(list((tmp_path / "d").glob("sealed/*.parquet")))

    with open_broker(tmp_path / "d", sync="os", segment_bytes=1 << 19) as broker:
        keeping = broker.runtime.upkeep
        keeping._stop.set()
        keeping.thread.join(60)

        def fill() -> None:
            broker.publish([Message("jobs", b"x" * 1000) for _ in range(600)])
            broker.publish([Message("jobs", b"x" * 1000) for _ in range(600)])
            broker.checkpoint()
            broker.checkpoint()
            keeping._unsealed = True

        fill()
        keeping._seal_when_quiet()
        assert sealed() == 0
        keeping._seal_when_quiet()
        assert sealed() > 0
        before = sealed()
        monkeypatch.setattr(background, "_MOST_UNSEALED", 0)
        fill()
        keeping._seal_when_quiet()
        assert sealed() > before


def test_l5_full_segments_of_an_earlier_process_are_sealed_though_nothing_more_is_written(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os", segment_bytes=1 << 19) as broker:
        keeping = broker.runtime.upkeep
        keeping._stop.set()
        keeping.thread.join(60)
        for _ in range(3):
            broker.publish([Message("jobs", b"x" * 1000) for _ in range(600)])
    with open_broker(tmp_path / "d", sync="os", segment_bytes=1 << 19) as broker:
        eventually(lambda: not list((tmp_path / "d").glob("tail/*.log")))
        assert broker.queue("jobs").size == 1800
        assert broker.message(0).state.value == "Q"


def test_l5_a_checkpoint_does_not_wait_for_all_that_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart plays what came since: it must not take longer because much waited to be sealed."""
    with open_broker(tmp_path / "d", sync="os", segment_bytes=1 << 19) as broker:
        keeping, log = broker.runtime.upkeep, broker.runtime.engine.log
        keeping._stop.set()
        keeping.thread.join(60)
        for _ in range(6):
            broker.publish([Message("jobs", b"x" * 1000) for _ in range(600)])
        for _ in range(2):
            broker.checkpoint()
        waiting = len(list(closed_segments(log)))
        assert waiting > 2
        left: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(background, "_BUSY_BYTES", 1 << 40)
            patch.setattr(keeping, "checkpoint", lambda: left.append(len(list(closed_segments(log)))))
            patch.setattr(keeping, "_checkpoint_is_due", lambda: not left)
            keeping._unsealed = True
            keeping._seal_when_quiet()
            assert left == [waiting - 1]
            assert keeping._unsealed, "the others are sealed the next time"
            keeping._seal_when_quiet()
            assert not list(closed_segments(log))


@pytest.mark.skipif(native.tail is None, reason="only the log in C holds frames that nobody has yet")
def test_l2_a_look_at_how_much_was_written_does_not_come_between_records(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "broker")
    with broker:
        broker.create_queue("orders", type="pull")
        runtime, log = broker.runtime, broker.runtime.engine.log
        for body in (b"0", b"1"):  # nobody waits for them yet, so that the second is held in memory
            runtime.submit(checks.publish(Message("orders", body), None, None, None, None, None))
        add = log._add

        def add_late(frame: bytes) -> None:
            """Whoever hands on what is held without the lock is overtaken by others."""
            log._add = add
            if not runtime.lock.locked():
                broker.publish(Message("orders", b"2"))
            add(frame)

        log._add = add_late
        runtime.upkeep._seal_when_quiet()
        log._add = add
        broker.publish(Message("orders", b"3"))
        # As after a kill: what closing writes would tell more than the log does.
        shutil.copytree(tmp_path / "broker", tmp_path / "copy", ignore=shutil.ignore_patterns("lock", "socket"))
    with open_broker(tmp_path / "copy") as again:
        assert again.recovery.clean, again.recovery.describe()
        assert waiting_bodies(again) == [b"0", b"1", b"3"]


def test_l6_nothing_goes_before_it_is_on_record_that_it_is_settled(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(tmp_path / "broker", clock, **SMALL, success_retention=0, collect_interval="365d") as broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        held = pulled(broker)
        fill(broker)

        def settle_meanwhile() -> None:
            """Nothing is archived; it is asked for just before it is looked at what stays."""
            held.answer(Settlement(Outcome.ACK), wait=False)
            clock.now += 1

        monkeypatch.setattr(broker.runtime.upkeep, "_archived", settle_meanwhile)
        assert broker.collect().messages > 100
        shutil.copytree(tmp_path / "broker", tmp_path / "copy", ignore=shutil.ignore_patterns("lock", "socket"))
    with open_at(tmp_path / "copy", clock) as again:
        assert again.recovery.clean, again.recovery.describe()
        assert waiting_bodies(again) == []


def test_l6_a_collection_that_fails_is_tried_again_before_the_next_is_due(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(tmp_path / "broker", clock) as broker:
        failures = [DiskFull("no room on the disk")]
        collected = []

        def collect() -> None:
            if failures:
                raise failures.pop()
            collected.append(1)

        monkeypatch.setattr(broker.runtime.upkeep, "collect", collect)
        clock.now += 2 * HOUR
        eventually(lambda: broker.health().problems.keys() == {"upkeep: retention"})
        eventually(lambda: collected)
        eventually(lambda: not broker.health().problems)


def test_l4_the_directory_is_not_let_go_while_somebody_writes_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its end would come when another process has the directory, and would remove that one's checkpoints."""
    broker = open_broker(tmp_path / "broker")
    log, begun, goes_on = broker.runtime.engine.log, threading.Event(), threading.Event()
    write = log.write_checkpoint

    def slow(*state: Any) -> int:
        begun.set()
        assert goes_on.wait(60)
        size: int = write(*state)
        return size

    monkeypatch.setattr(log, "write_checkpoint", slow)
    writing = threading.Thread(target=broker.checkpoint)
    writing.start()
    assert begun.wait(60)
    closing = threading.Thread(target=broker.close)
    closing.start()
    closing.join(0.3)
    held = is_held(tmp_path / "broker")
    goes_on.set()
    for thread in (writing, closing):
        thread.join(60)
    assert held
    assert not is_held(tmp_path / "broker")
    with pytest.raises(BrokerClosed):
        broker.checkpoint()


def test_l6_l11_a_clock_far_ahead_at_start_removes_nothing_for_the_first_hour(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with open_at(tmp_path / "broker", clock, collect_interval="1s") as broker:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(5, "orders"))
        delivery = broker.pull("orders", 5)
        assert delivery is not None
        delivery.dead()
    clock.now += 3650 * DAY
    with open_at(tmp_path / "broker", clock, collect_interval="1s") as broker:
        assert "retention removes nothing for the first hour" in caplog.text
        clock.now += HOUR - HOUR // 60
        broker.runtime.upkeep.collect_when_due()
        assert broker.queue("orders").dead == 5
        clock.now += HOUR // 30
        broker.runtime.upkeep.collect_when_due()
        assert broker.queue("orders").dead == 0
    caplog.clear()
    with open_at(tmp_path / "broker", clock, collect_interval="1s"):
        assert "first hour" not in caplog.text
