"""Who changed a queue (B15, Q14): what the log says of it, before and after it is sealed, and in which places."""

from __future__ import annotations

from pathlib import Path

from remuda import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk import DirectoryDisk
from remuda.log.eventlog import open_event_log
from remuda.log.repair.check import check
from remuda.log.sealed import queue_changes
from remuda.model.message import Message

SMALL = 1 << 16


def told(path: Path, queue: str | None = None) -> list[tuple[str, str, str | None]]:
    return [(change.queue, change.action, change.who) for change in open_event_log(path).changes(queue)]


def operate(broker: EmbeddedBroker) -> None:
    broker.create_queue("q")  # which nobody puts their name to
    broker.publish(Message("x", b"1"), queue="q")
    broker.clear("q", who="ann")
    broker.forget("q", who="ann")
    broker.set_status("q", "paused", who="ben")
    broker.set_status("q", "running", who="ben")
    broker.configure_queue("q", who="cat", message_limit=7000)
    broker.create_queue("other")
    broker.remove_queue("other", who="dan")


TOLD = [
    ("q", "forgotten", "ann"), ("q", "status", "ben"), ("q", "status", "ben"), ("q", "configured", "cat"),
    ("other", "removed", "dan"),
]  # fmt: skip


def test_b15_q14_a_reader_tells_who_did_it(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        operate(broker)
        assert told(tmp_path) == TOLD, "beside the broker"
        assert told(tmp_path, "other") == TOLD[-1:]
    assert told(tmp_path) == TOLD


def test_b15_it_is_known_after_the_segment_was_sealed(tmp_path: Path) -> None:
    with open_broker(tmp_path, segment_bytes=SMALL) as broker:
        operate(broker)
        reader = broker.spectate().log
        for _ in range(6):
            broker.publish([Message("x", bytes(1000)) for _ in range(20)], queue="q")
        broker.runtime.checkpoint()
        broker.runtime.upkeep.seal()
        assert queue_changes.names(DirectoryDisk(tmp_path, create=False).list()), "a file of changes"
        assert [(one.queue, one.action, one.who) for one in reader.changes()] == TOLD
    assert told(tmp_path) == TOLD
    assert not check(DirectoryDisk(tmp_path, create=False)).findings


def test_l9_a_damaged_file_of_changes_is_reported_and_costs_itself_alone(tmp_path: Path) -> None:
    test_b15_it_is_known_after_the_segment_was_sealed(tmp_path)
    disk = DirectoryDisk(tmp_path, create=False)
    (name, *_) = queue_changes.names(disk.list())
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert told(tmp_path) == []
    assert [finding.file for finding in check(disk).findings] == [name]
