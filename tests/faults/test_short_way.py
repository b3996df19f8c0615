"""L2, L7: single messages go a short way to the disk. What it promises, it keeps like any other way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remuda import Message, StorageError, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk.system import DirectoryFile, datasync

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]


def tail_of(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("tail/*.log"))).rstrip(b"\0")


def test_l2_with_sync_always_a_single_message_and_its_answer_are_synced_before_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []

    def watched(handle: int) -> None:
        content = tail_of(tmp_path)
        datasync(handle)
        synced.append(content)

    monkeypatch.setattr("remuda.log.disk.system.datasync", watched)
    waited = 0
    with open_broker(tmp_path, sync="always", shared=False) as broker:
        broker.create_queue("q", type="pull", acknowledge_timeout="1h")
        for number in range(5):
            broker.publish(Message("q", b"body %d" % number))
            assert b"body %d" % number in synced[-1]
            delivery = broker.pull("q")
            assert delivery is not None
            unsynced = tail_of(tmp_path)
            waited += unsynced == synced[-1]  # upkeep may have come first
            delivery.ack()
            assert synced[-1].startswith(unsynced)
            assert len(synced[-1]) > len(unsynced), "the answer is on the disk as well"
    assert waited < 5, "a delivery is written, and needs no sync"


REFUSED = """
import json, resource, signal, sys, time
from remuda import Message, StorageError, open_broker
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
broker = open_broker(sys.argv[1], sync=sys.argv[2], shared=False)
broker.create_queue("q", type="pull", acknowledge_timeout="1h")
accepted, perhaps = [], []
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
def publish(number):
    body = b"%d " % number
    try:
        broker.publish(Message("q", body + b"x" * 100))
    except StorageError as error:
        assert error.passing, error
        return False
    accepted.append(number)
    return True
def room(more):
    resource.setrlimit(resource.RLIMIT_FSIZE, (broker.runtime.engine.log._byte + more, limits[1]))
for number in range(0, 120, 6):
    assert publish(number)
    room(1 + number)  # the next frame is torn there, or fits
    if not publish(number + 1):
        perhaps.append(number + 1)
        if len(perhaps) % 2:
            try:
                broker.pull("q").nack()
            except StorageError as error:
                assert error.passing, error
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    end = time.monotonic() + 60
    while not broker.health().live or broker.runtime.stalled:
        assert time.monotonic() < end, "it does not go on by itself"
        time.sleep(0.01)
broker.close()
print(json.dumps([accepted, perhaps]))
"""


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
def test_l7_a_frame_of_which_the_disk_takes_a_part_does_not_count_until_it_takes_the_rest(
    tmp_path: Path, sync: str
) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REFUSED, tmp_path / "data", sync],
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    accepted, perhaps = json.loads(run.stdout)
    assert len(accepted) >= 20
    assert perhaps, "the disk was full"
    with open_broker(tmp_path / "data", shared=False) as broker:
        assert not broker.recovery.damages
        assert not broker.recovery.torn
        found = [int(body.split()[0]) for body in bodies(broker)]
    assert sorted(set(found)) == sorted(found), "nothing twice"
    assert set(accepted) <= set(found) <= {*accepted, *perhaps}


def bodies(broker: EmbeddedBroker) -> Iterator[bytes]:
    while (delivery := broker.pull("q", 1000)) is not None:
        yield from delivery.bodies
        delivery.ack()


@pytest.mark.parametrize("verb", ["publish", "pull", "ack", "nack"])
def test_l7_a_write_that_fails_for_good_is_the_end_and_everyone_is_told(tmp_path: Path, verb: str) -> None:
    broker = open_broker(tmp_path / "data", sync="os", shared=False)
    broker.create_queue("q", type="pull", acknowledge_timeout="1h")
    for number in range(3):
        broker.publish(Message("q", b"%d" % number))
    delivery = broker.pull("q")
    assert delivery is not None
    file = next(iter(broker.runtime.engine.log._writer._files.values()))
    assert isinstance(file, DirectoryFile)
    before = tail_of(tmp_path / "data")
    saved = os.dup(file.handle)
    unwritable = os.open(tmp_path / "data" / "remuda.json", os.O_RDONLY)
    os.dup2(unwritable, file.handle)
    try:
        verbs: dict[str, Callable[[], object]] = {
            "publish": lambda: broker.publish(Message("q", b"refused")),
            "pull": lambda: broker.pull("q"),
            "ack": delivery.ack,
            "nack": delivery.nack,
        }
        with pytest.raises(StorageError):
            verbs[verb]()
        os.dup2(saved, file.handle)  # what cannot be written once is not written later either
        assert not broker.health().live
        with pytest.raises(StorageError, match="open the broker again"):
            broker.publish(Message("q", b"refused as well"))
    finally:
        broker.close()
        os.close(saved)
        os.close(unwritable)
    assert tail_of(tmp_path / "data") == before
    with open_broker(tmp_path / "data", shared=False) as again:
        assert not again.recovery.damages
        assert sorted(bodies(again)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
def test_l7_a_directory_that_was_taken_over_is_not_written_to_by_the_short_way(tmp_path: Path, sync: str) -> None:
    """Whoever stood still finds another's number in the lock, and writes nothing more."""
    broker = open_broker(tmp_path, sync=sync, shared=True)
    broker.create_queue("q", type="pull")
    broker.publish(Message("q", b"kept"))
    lock = tmp_path / "lock"
    pid, epoch, how = lock.read_text().split()
    lock.write_text(f"1\n{int(epoch) + 1}\n{how}\n")
    time.sleep(0.3)  # for that long it may take the directory for its own without looking
    before = tail_of(tmp_path)
    try:
        with pytest.raises(StorageError, match="taken over"):
            broker.publish(Message("q", b"refused"))
        assert tail_of(tmp_path) == before
    finally:
        lock.write_text(f"{pid}\n{epoch}\n{how}\n")
        broker.close()
