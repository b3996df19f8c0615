"""L3, L9: a damaged record never takes intact messages along, and the report tells exactly what is missing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.broker.embedded import EmbeddedBroker
from remuda.log.disk import DirectoryDisk
from remuda.log.recovery import RecoveryReport

pytestmark = pytest.mark.faults


def tails(path: Path) -> list[Path]:
    return sorted(file for file in (path / "tail").iterdir() if file.read_bytes().strip(b"\0"))


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))


def killed(broker: EmbeddedBroker, path: Path) -> None:
    """What would be left if the process were killed now; the broker is closed."""
    copy = path.with_name(f"{path.name}-killed")
    shutil.copytree(path, copy)
    broker.close()
    shutil.rmtree(path)
    copy.rename(path)


def bodies(broker: EmbeddedBroker, queue: str) -> list[bytes]:
    found: list[bytes] = []
    while (delivery := broker.pull(queue, 500)) is not None:
        found += delivery.bodies
        delivery.ack()
    return found


def test_l9_messages_outlive_the_record_that_created_their_queue(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("before", type="pull")
        broker.create_queue("precious-queue", type="pull")
        for number in range(10):
            broker.publish([Message("precious-queue", b"%d" % n) for n in range(100 * number, 100 * number + 100)])
        killed(broker, tmp_path)
    (tail,) = tails(tmp_path)
    flip(tail, tail.read_bytes().index(b"precious-queue"))
    with open_broker(tmp_path, sync="os", success_retention=0) as broker:
        assert broker.recovery.found == {"precious-queue": 1000}
        assert "1000 messages were found for it and are kept" in broker.recovery.describe()
        assert "lost: 1 records" in broker.recovery.describe()
        assert (broker.recovery.lost_messages, broker.recovery.lost_records) == (0, 1)
        broker.collect()
        broker.create_queue("precious-queue", type="pull")
        killed(broker, tmp_path)
    with open_broker(tmp_path, sync="os", success_retention=0) as broker:
        assert bodies(broker, "precious-queue") == [b"%d" % n for n in range(1000)]


def test_l9_queues_are_made_again_when_no_checkpoint_can_be_read(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os", segment_bytes=1 << 16) as broker:
        broker.create_queue("q", type="pull")
        for number in range(20):
            broker.publish([Message("q", b"%d " % n + b"x" * 1000) for n in range(10 * number, 10 * number + 10)])
        delivery = broker.pull("q", 50)
        assert delivery is not None
        delivery.ack()
        delivery = broker.pull("q", 10)
        assert delivery is not None
        delivery.dead(reason="no")
        for _ in range(3):
            broker.checkpoint()
        broker.host.upkeep.seal()
        killed(broker, tmp_path)
    assert list((tmp_path / "sealed").iterdir())
    for file in (tmp_path / "checkpoint").iterdir():
        flip(file, 40)
    with open_broker(tmp_path, sync="os") as broker:
        assert broker.recovery.state_lost
        assert broker.recovery.found["q"] >= 200
        broker.create_queue("q", type="pull")
        assert [int(body.split()[0]) for body in bodies(broker, "q")] == list(range(60, 200))
        assert len(broker.parked("q")) == 10


def test_l9_a_checkpoint_that_holds_nonsense_is_passed_over(tmp_path: Path) -> None:
    from remuda.log import checkpoint

    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("q", type="pull")
        broker.publish([Message("q", b"%d" % n) for n in range(10)])
        broker.checkpoint()
        killed(broker, tmp_path)
    disk = DirectoryDisk(tmp_path)
    (sequence,) = checkpoint.sequences(disk)
    (kept,) = checkpoint.read_all(disk).valid
    checkpoint.write(disk, kept._replace(sequence=sequence, snapshot=b"\xc1nonsense"))
    with open_broker(tmp_path, sync="os") as broker:
        assert broker.recovery.damaged_checkpoints == (checkpoint.name_of(sequence),)
        assert len(bodies(broker, "q")) == 10


@pytest.mark.parametrize("harm", ["missing", "empty", "short"])
def test_l9_a_tail_that_ends_before_the_checkpoint_is_reported_by_offset(tmp_path: Path, harm: str) -> None:
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("q", type="pull")
        broker.publish([Message("q", b"%d" % n) for n in range(10)])
        cut_at = 700
        broker.publish([Message("q", b"%d" % n + b"y" * 100) for n in range(10, 30)])
        broker.checkpoint()
        broker.publish([Message("q", b"after the mark")])
        killed(broker, tmp_path)
    (tail,) = tails(tmp_path)
    if harm == "missing":
        tail.unlink()
    else:
        tail.write_bytes(tail.read_bytes()[: cut_at if harm == "short" else 0])
    lost = {"missing": "30 messages (0 to 29)", "empty": "30 messages (0 to 29)", "short": "20 messages (10 to 29)"}
    for _ in range(2):
        with open_broker(tmp_path, sync="os") as broker:
            report: RecoveryReport = broker.recovery
            assert lost[harm] in report.describe()
            broker.publish(Message("other", b"new"))
            killed(broker, tmp_path)
    with open_broker(tmp_path, sync="os") as broker:
        assert broker.queue("other").size == 2, "what was published since is not looked for behind the old mark"


def test_l9_an_unreadable_segment_leaves_the_one_before_it_readable(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os", segment_bytes=1 << 16) as broker:
        broker.create_queue("q", type="pull")
        for number in range(20):
            broker.publish([Message("q", b"%d " % n + b"x" * 1000) for n in range(10 * number, 10 * number + 10)])
        killed(broker, tmp_path)
    segments = tails(tmp_path)
    assert len(segments) >= 3
    rng = random.Random(1)
    for lost in range(1, len(segments)):
        copy = tmp_path.with_name(f"copy-{lost}")
        shutil.copytree(tmp_path, copy)
        (copy / "tail" / segments[lost].name).write_bytes(rng.randbytes(segments[lost].stat().st_size))
        with open_broker(copy, sync="os") as broker:
            found = {int(body.split()[0]) for body in bodies(broker, "q")}
            missing = {n for damage in broker.recovery.damages for n in damage.messages or ()}
            if lost < len(segments) - 1:
                assert found | missing == set(range(200))
            assert not found & missing
            assert found >= set(range(60))
