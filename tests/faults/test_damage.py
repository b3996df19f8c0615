"""L3, L9: a damaged record never takes intact messages along, and the report tells exactly what is missing."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.broker.embedded.engine import Engine
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.options import BrokerOptions
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk import DirectoryDisk, MemoryDisk
from remuda.log.repair.check import check
from remuda.log.repair.recovery import RecoveryReport
from remuda.log.state import newest_segment

pytestmark = pytest.mark.faults


def tails(path: Path) -> list[Path]:
    return sorted(file for file in (path / "tail").glob("*.log") if file.read_bytes().strip(b"\0"))


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))


def killed(broker: EmbeddedBroker, path: Path) -> None:
    """What would be left if the process were killed now; the broker is closed."""
    copy = path.with_name(f"{path.name}-killed")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("socket"))
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
        broker.runtime.upkeep.seal()
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
    from remuda.log.state import checkpoint

    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("q", type="pull")
        broker.publish([Message("q", b"%d" % n) for n in range(10)])
        broker.checkpoint()
        killed(broker, tmp_path)
    disk = DirectoryDisk(tmp_path)
    (sequence,) = checkpoint.sequences(disk)
    (kept,) = checkpoint.read_all(disk).valid
    checkpoint.write(disk, sequence, kept.mark, [b"\xc1nonsense"])
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
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("socket"))
        (copy / "tail" / segments[lost].name).write_bytes(rng.randbytes(segments[lost].stat().st_size))
        with open_broker(copy, sync="os") as broker:
            found = {int(body.split()[0]) for body in bodies(broker, "q")}
            missing = {n for damage in broker.recovery.damages for n in damage.messages or ()}
            if lost < len(segments) - 1:
                assert found | missing == set(range(200))
            assert not found & missing
            assert found >= set(range(60))


def directory_files(path: Path) -> dict[str, bytes]:
    """A life with several queues, forwards, dead letters, sealed files and checkpoints, ended by a kill."""
    with open_broker(path, sync="os", segment_bytes=1 << 16, worker=3) as broker:
        for name in ("a", "b", "dead-letters"):
            broker.create_queue(name, type="pull")
        rng = random.Random(8)
        for number in range(60):
            queue = rng.choice("ab")
            broker.publish([Message(queue, b"%d" % number + b"x" * rng.randrange(900)) for _ in range(10)])
            delivery = broker.pull(queue, rng.randrange(1, 9))
            assert delivery is not None
            match rng.randrange(4):
                case 0:
                    delivery.ack()
                case 1:
                    delivery.dead()
                case 2:
                    delivery.nack()
                case 3:
                    delivery.dead(to="dead-letters")
            if number in (20, 35, 50):
                broker.checkpoint()
                broker.runtime.upkeep.seal()
        copy = path.with_name("copy")
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("socket"))
    found = {str(file.relative_to(copy)): file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    return {name: data for name, data in found.items() if name.split("/")[0] in ("tail", "sealed", "checkpoint")}


def harmed(rng: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    files = dict(files)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        name = rng.choice(sorted(files))
        data = files[name]
        written = len(data.rstrip(b"\0"))
        if not written:
            continue
        at = rng.randrange(written)
        match rng.randrange(8):
            case 0:
                files[name] = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            case 1:
                files[name] = data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]
            case 2:
                files[name] = data[:at]
            case 3:
                files[name] = data[:at] + rng.randbytes(min(4096, len(data) - at)) + data[at + 4096 :]
            case 4:
                del files[name]
            case 5:
                files[name] = rng.randbytes(written)
            case 6:
                other = rng.choice([one for one in sorted(files) if one.split("/")[0] == name.split("/")[0]])
                files[name], files[other] = files[other], data
            case 7:
                if name.startswith("tail/") and name.endswith(".log"):
                    files[f"tail/{rng.randrange(99):016x}{name[21:]}"] = data
    return files


def disk_of(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    for name, data in files.items():
        disk.write_atomic(name, data)
    return disk


def opened(files: dict[str, bytes]) -> Engine:
    return Engine(disk_of(files), BrokerOptions(), Extensions(), 3, 2_000_000_000_000_000)


def held(engine: Engine) -> tuple[set[int], set[int]]:
    """The messages that the queues hold, and those of them that can be read."""
    runs = [run for queue in engine.core.queues.values() for run in queue.live()]
    live = {offset for first, count in runs for offset in range(first, first + count)}
    fetched = engine.log.fetch([(offset, 1) for offset in sorted(live)])
    readable = {n for first, count in fetched.offsets for n in range(first, first + count)}
    return live, readable


def test_l9_after_any_damage_every_intact_message_is_in_its_queue_and_the_rest_is_reported(tmp_path: Path) -> None:
    files = directory_files(tmp_path / "log")
    before = opened(files)
    expected, readable = held(before)
    assert expected == readable
    assert len(expected) > 200
    queues = set(before.core.queues)
    newest = max(name for name, data in files.items() if name.endswith(".log") and data.strip(b"\0"))
    for seed in range(int(os.environ.get("REMUDA_DAMAGED", "100"))):
        rng = random.Random(seed)
        damaged = harmed(rng, files)
        told = check(disk_of(damaged))
        engine = opened(damaged)
        report = engine.report
        live, readable = held(engine)
        lost = {n for damage in report.damages for n in damage.messages or ()}
        spans = [one.messages for one in told.findings if one.messages]
        listed = lost | {n for first, last in spans for n in range(first, last + 1)}
        listed |= {n for gap in report.uncovered for n in gap}
        end = engine.log.next_offset
        silent = {n for n in expected - readable - listed - (live - readable) if n < end}
        assert not silent, (seed, silent, report.describe(), told.describe())
        assert not lost & readable, (seed, "called lost, and is there")
        if told.clean and report.clean:
            # An older checkpoint does as well as a newer one, and where the log ends only its end can tell.
            changed = {name for name in files.keys() | damaged.keys() if files.get(name) != damaged.get(name)}
            unseen = {name for name in changed if not name.startswith("checkpoint/")} - {newest, newest_segment.NAME}
            assert not unseen, seed
        assert queues >= set(engine.core.queues), seed
