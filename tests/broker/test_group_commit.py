"""Many who wait share few writes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remuda.broker.embedded.storing.group_commit import GroupCommit
from remuda.broker.opening import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import StorageError
from remuda.model.message import Message
from tests.broker.kit import WatchedDisk, hosted_on
from tests.conformance.kit import eventually, waiting_bodies


class Work:
    """Counts how often it is done. Tickets up to `issued` are kept by each round."""

    def __init__(self) -> None:
        self.rounds = 0
        self.issued = 0
        self.active = 0
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def __call__(self) -> int:
        self.active += 1
        assert self.active == 1, "two threads write at once"
        reached = self.issued
        self.gate.wait(60)
        self.rounds += 1
        self.active -= 1
        if self.failure is not None:
            raise self.failure
        return reached


def test_a_kept_ticket_needs_no_work() -> None:
    work = Work()
    commit = GroupCommit(work)
    work.issued = 3
    commit.wait(2)
    commit.wait(3)
    assert work.rounds == 1


def test_those_who_come_while_one_writes_share_the_next_write() -> None:
    work = Work()
    commit = GroupCommit(work)
    work.gate.clear()
    with ThreadPoolExecutor(20) as pool:
        work.issued = 1
        first = pool.submit(commit.wait, 1)
        while not work.active:
            pass
        work.issued = 20
        others = [pool.submit(commit.wait, ticket) for ticket in range(2, 21)]
        work.gate.set()
        for one in (first, *others):
            one.result(60)
    assert work.rounds == 2


def test_a_failure_reaches_everyone_and_stays() -> None:
    work = Work()
    commit = GroupCommit(work)
    work.issued = 1
    commit.wait(1)
    work.failure = OSError("the disk is gone")
    work.issued = 3
    with pytest.raises(OSError, match="the disk is gone"):
        commit.wait(2)
    with pytest.raises(StorageError, match=r"the disk is gone\. Everything confirmed is kept.*open the broker again"):
        commit.wait(3)
    commit.wait(1)
    assert work.rounds == 2


def test_eight_threads_need_far_fewer_syncs_than_messages(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path / "broker", sync_takes=0.001)
    broker = EmbeddedBroker(hosted_on(disk, sync="always"))
    broker.create_queue("orders", type="pull")
    disk.syncs = disk.writes = 0

    def produce(producer: int) -> None:
        for number in range(200):
            broker.publish(Message("orders", b"%d-%d" % (producer, number)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(produce, range(8)))
    syncs, writes = disk.syncs, disk.writes
    broker.close()
    assert syncs < 800
    assert writes < 800
    with open_broker(tmp_path / "broker") as again:
        assert len(waiting_bodies(again)) == 1600


def test_nothing_is_confirmed_before_it_is_synced(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path / "broker")
    with EmbeddedBroker(hosted_on(disk, sync="always")) as broker:
        for _ in range(5):
            before = disk.syncs
            broker.publish(Message("orders", b""))
            assert disk.syncs > before


def test_sync_os_leaves_it_to_the_system(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path / "broker")
    with EmbeddedBroker(hosted_on(disk, sync="os")) as broker:
        broker.create_queue("orders")
        before = disk.syncs
        for _ in range(20):
            broker.publish(Message("orders", b""))
        assert disk.syncs == before


def test_memory_queues_need_no_sync(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path / "broker")
    with EmbeddedBroker(hosted_on(disk, sync="always")) as broker:
        broker.create_queue("orders", type="pull", persistence="memory")
        before = disk.syncs
        broker.publish([Message("orders", b"")] * 20)
        assert len(waiting_bodies(broker)) == 20
        assert disk.syncs == before


def test_commit_when_none_needs_no_sync(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path / "broker")
    with EmbeddedBroker(hosted_on(disk, sync="always")) as broker:
        broker.create_queue("orders", type="pull", commit_when="none")
        before = disk.syncs
        for _ in range(20):
            broker.publish(Message("orders", b""))
        assert disk.syncs == before


def test_sync_interval_syncs_now_and_then(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path / "broker")
    with EmbeddedBroker(hosted_on(disk, sync="interval", sync_interval="20ms")) as broker:
        before = disk.syncs
        broker.publish(Message("orders", b""))
        eventually(lambda: disk.syncs > before)


def test_a_disk_that_fails_says_so_and_keeps_what_was_confirmed(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path / "broker")
    broker = EmbeddedBroker(hosted_on(disk))
    broker.create_queue("orders", type="pull")
    broker.publish(Message("orders", b"kept"))
    disk.failure = StorageError("input/output error")
    for _ in range(2):
        with pytest.raises(StorageError, match="input/output error"):
            broker.publish(Message("orders", b"lost"))
    broker.close()
    with open_broker(tmp_path / "broker") as again:
        assert waiting_bodies(again) == [b"kept"]
