"""L7: full and failing disks. Nothing that was confirmed is lost, nothing that was refused is confirmed."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from remuda import Message, Messages, open_broker
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.options import BrokerOptions
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk import system
from remuda.model.errors import DiskFull, StorageError
from tests.faults.disks import FailingDisk, input_output_error

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]


def open_on(disk: FailingDisk, **options: object) -> EmbeddedBroker:
    return EmbeddedBroker(Runtime(disk, BrokerOptions.parse(**options)))


def fill(broker: EmbeddedBroker) -> None:
    for _ in range(1000):
        broker.publish(Messages(bodies=[b"x" * 100_000] * 10, name="q.filler"))


def drained(directory: Path, queue: str) -> list[bytes]:
    with open_broker(directory) as broker:
        bodies: list[bytes] = []
        while (delivery := broker.pull(queue, 1000)) is not None:
            bodies += delivery.bodies
            delivery.ack()
        return bodies


def test_l7_on_a_full_disk_publishing_is_refused_and_consuming_goes_on(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path / "log")
    broker = open_on(disk)
    broker.create_queue("q", type="pull")
    sent = [b"%d" % number for number in range(50)]
    broker.publish(Messages(bodies=sent, name="q"))
    disk.full = True
    with pytest.raises(DiskFull):
        fill(broker)
    before = broker.queue("q").size
    for _ in range(5):
        delivery = broker.pull("q", 2)
        assert delivery is not None
        assert delivery.ack() == 2
    assert broker.queue("q").size == before - 10
    disk.full = False
    broker.publish(Message("q", b"after"))
    broker.close()
    left = drained(tmp_path / "log", "q")
    assert left[:40] == sent[10:]
    assert left[-1] == b"after"


def test_l7_the_disk_may_stay_full_to_the_end(tmp_path: Path) -> None:
    """Closing cannot leave a checkpoint; the records are enough."""
    disk = FailingDisk(tmp_path / "log")
    broker = open_on(disk)
    broker.create_queue("q", type="pull")
    broker.publish(Messages(bodies=[b"a", b"b"], name="q"))
    disk.full = True
    delivery = broker.pull("q")
    assert delivery is not None
    delivery.ack()
    with pytest.raises(DiskFull):
        broker.close()
    assert drained(tmp_path / "log", "q") == [b"b"]


CHILD = """
import resource, signal, sys
from remuda import Message, Messages, open_broker
from remuda.model.errors import DiskFull
broker = open_broker(sys.argv[1], sync="os")
broker.create_queue("q", type="pull")
resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, resource.RLIM_INFINITY))
accepted = 0
try:
    while True:
        broker.publish(Message("q", b"%d " % accepted + b"x" * 50_000))
        accepted += 1
except DiskFull as error:
    told = str(error)
settled = 0
for _ in range(20):
    settled += broker.pull("q").ack()
print(accepted, settled, "everything accepted before is kept" in told)
broker.close()
"""


def test_l7_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    """The system itself says no, in another process."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "log")], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    accepted, settled, told = run.stdout.split()
    assert (int(accepted) > 50, settled, told) == (True, "20", "True")
    numbers = [int(body.split()[0]) for body in drained(tmp_path / "log", "q")]
    assert numbers == list(range(20, int(accepted)))


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_l7_after_a_failed_write_nothing_is_confirmed_until_reopened(tmp_path: Path, failing: str) -> None:
    disk = FailingDisk(tmp_path / "log")
    broker = open_on(disk, sync="always")
    broker.create_queue("q", type="pull")
    broker.publish(Message("q", b"kept"))
    setattr(disk, f"{failing}_error", input_output_error())
    with pytest.raises(StorageError):
        broker.publish(Message("q", b"uncertain"))
    setattr(disk, f"{failing}_error", None)
    for _ in range(2):
        with pytest.raises(StorageError, match="open"):
            broker.publish(Message("q", b"refused"))
    with pytest.raises(StorageError):
        broker.pull("q")
    broker.close()
    found = drained(tmp_path / "log", "q")
    assert found[0] == b"kept"
    assert b"refused" not in found


def test_l7_a_sync_without_room_is_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have dropped what it could not write: a second sync would succeed without it."""

    def no_room(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    broker = open_broker(tmp_path / "log")
    broker.create_queue("q", type="pull")
    monkeypatch.setattr(system, "datasync", no_room)
    with pytest.raises(StorageError):
        broker.publish(Message("q", b"uncertain"))
    monkeypatch.undo()
    with pytest.raises(StorageError, match="open the broker again"):
        broker.publish(Message("q", b"refused"))
    assert not broker.health().live
    broker.close()
