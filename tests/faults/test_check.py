"""L9: `remuda check` tells the whole truth, and `remuda backup` copies a directory beside its running broker."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from remuda import Message, open_broker
from remuda.cli.app import app
from remuda.log import spool
from remuda.log.disk import DirectoryDisk, MemoryDisk
from remuda.log.disk.directory import MARKER
from remuda.log.readers.reader import Reader
from remuda.log.repair.backup import backup
from remuda.log.repair.check import check
from remuda.log.sealed.seal import seal
from remuda.log.state import newest_segment
from remuda.model.errors import ForeignDirectory, InvalidOption, StorageError
from tests.faults import backups
from tests.faults.backups import loaded_broker
from tests.faults.killing import fork_server
from tests.log.samples import appended, change, commit, events, open_log

pytestmark = pytest.mark.faults


def make(path: Path) -> None:
    """A directory with sealed files, a tail, checkpoints, an index and a spool."""
    with open_broker(path, sync="os", segment_bytes=1 << 16) as broker:
        broker.create_queue("q", type="pull")
        for number in range(30):
            broker.publish([Message("q", b"%d " % n + b"x" * 1000) for n in range(10 * number, 10 * number + 10)])
        delivery = broker.pull("q", 100)
        assert delivery is not None
        delivery.ack()
        for _ in range(3):
            broker.checkpoint()
        broker.runtime.upkeep.seal()
        broker.publish([Message("q", b"%d " % n) for n in range(300, 400)])
    place = spool.prepare(str(path))
    rows = pa.RecordBatch.from_pylist([{"name": "q", "body": b"spooled"}], spool.SPOOL_SCHEMA)
    spool.lay(place, "app", 1, [spool.stage(place, [rows])[0]])


def run(*words: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.stdout, result.exception
    return result.exit_code, msgspec.json.decode(result.stdout)


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_l9_a_whole_directory_is_called_whole_and_left_as_it_was(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    code, told = run("check", tmp_path)
    assert (code, told["whole"], told["findings"]) == (0, True, [])
    assert (told["messages"], told["next_offset"], told["spooled_batches"]) == (400, 400, 1)
    assert told["sealed_files"] >= 4
    assert contents(tmp_path) == before
    plain = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert "the directory is whole" in plain.stdout


def test_l9_every_kind_of_damage_is_found(tmp_path: Path) -> None:
    make(tmp_path / "whole")
    rng = random.Random(3)
    found: dict[str, int] = {}
    files = [file for file in sorted((tmp_path / "whole").rglob("*")) if file.is_file()]
    for file in files:
        name = file.relative_to(tmp_path / "whole")
        if name.name in ("lock", "begun.map", "remuda.json"):
            continue
        data = file.read_bytes()
        written = len(data.rstrip(b"\0"))
        if not written:
            continue
        for harm in ("flip", "cut", "gone"):
            if harm == "flip":
                at = rng.randrange(written)
                file.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
            elif harm == "cut":
                file.write_bytes(data[: rng.randrange(written)])
            else:
                file.unlink()
            code, told = run("check", tmp_path / "whole")
            file.write_bytes(data)
            if harm == "gone" and (name.parts[0] in ("checkpoint", "spool", "index") or name.name == "newest"):
                continue  # an older checkpoint or the sealed file does as well; an empty batch holds nothing
            assert code == 1, (name, harm)
            assert told["findings"], (name, harm)
            found[name.parts[0]] = found.get(name.parts[0], 0) + 1
    assert set(found) == {"tail", "sealed", "checkpoint", "spool", "index"}
    assert run("check", tmp_path / "whole")[0] == 0


def test_l9_a_tail_that_was_cut_between_two_records_is_told_by_offset() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    commit(log, [appended(log, [b"kept"] * 10)])
    kept = log.mark()
    commit(log, [appended(log, [b"cut"] * 20)])
    log.write_checkpoint(log.mark(), b"state")
    (segment,) = log.catalog.files().tail
    assert check(disk).clean
    disk.write_atomic(segment.name, disk.read(segment.name)[: kept.byte])
    assert [finding.messages for finding in check(disk).findings] == [(10, 29)]


def test_l9_a_backup_beside_a_running_broker_is_restored(tmp_path: Path) -> None:
    source, stop = tmp_path / "log", threading.Event()
    accepted: list[int] = []
    settled: set[int] = set()
    with open_broker(source, sync="os", segment_bytes=1 << 16, checkpoint_bytes=1 << 14) as broker:
        broker.create_queue("q", type="pull")

        def work() -> None:
            number = 0
            while not stop.is_set():
                broker.publish([Message("q", b"%d " % n + b"x" * 400) for n in range(number, number + 20)])
                accepted.extend(range(number, number + 20))
                number += 20
                delivery = broker.pull("q", 7)
                assert delivery is not None
                delivery.ack()
                settled.update(int(body.split()[0]) for body in delivery.bodies)
                if number % 400 == 0:
                    broker.checkpoint()
                    broker.runtime.upkeep.seal()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(3):
                while len(accepted) < 500 * (number + 1) and thread.is_alive():
                    stop.wait(0.01)
                known, done = list(accepted), set(settled)
                made = backup(source, tmp_path / f"copy-{number}", link=bool(number % 2))
                assert made.report.clean, made.report.describe()
                later, later_done = len(accepted), set(settled)
                with open_broker(made.path, sync="os") as copy:
                    assert copy.recovery.clean, copy.recovery.describe()
                    held: list[int] = []
                    while (delivery := copy.pull("q", 5000)) is not None:
                        held += [int(body.split()[0]) for body in delivery.bodies]
                    assert len(held) == len(set(held))
                    assert set(known) - later_done <= set(held), "everything accepted before is in it"
                    assert not set(held) & done, "nothing settled before comes back"
                    assert max(held) < later + 20
        finally:
            stop.set()
            thread.join()
        assert thread.is_alive() is False
    with open_broker(source, sync="os") as broker:
        assert broker.recovery.clean


def test_l9_backups_beside_a_broker_under_load_are_whole_also_where_others_are_killed(tmp_path: Path) -> None:
    """`python -m tests.faults.backups` takes more of them."""
    processes, source = fork_server(), tmp_path / "log"
    with loaded_broker(processes, source, 7) as broker:
        broker.work(300)
        backups.take_and_be_killed(processes, broker, source, tmp_path / "copy", 0.0)
        assert backups.take(broker, source, tmp_path / "copy", link=True) > 0
        backups.take_and_be_killed(processes, broker, source, tmp_path / "copy", 0.1)


def test_l9_half_a_copy_is_not_opened(tmp_path: Path) -> None:
    make(tmp_path / "log")
    backup(tmp_path / "log", tmp_path / "copy")
    (tmp_path / "copy" / MARKER).unlink()  # which is written last
    with pytest.raises(ForeignDirectory):
        open_broker(tmp_path / "copy")
    with pytest.raises(InvalidOption, match="not an empty directory"):
        backup(tmp_path / "log", tmp_path / "copy")


def test_l9_a_backup_of_a_closed_directory_and_its_spool(tmp_path: Path) -> None:
    make(tmp_path / "log")
    code, told = run("backup", tmp_path / "log", tmp_path / "copy")
    assert (code, told["whole"], told["messages"]) == (0, True, 400)
    assert told["linked"] > 0
    assert len(spool.waiting(tmp_path / "copy" / "spool")) == 1
    assert run("check", tmp_path / "copy")[0] == 0
    for target in (tmp_path / "copy", tmp_path / "log" / "below"):
        with pytest.raises(InvalidOption):
            backup(tmp_path / "log", target)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(StorageError, match="holds no log"):
        backup(tmp_path / "nothing", tmp_path / "new")


def test_l9_a_backup_begins_anew_when_its_checkpoint_is_replaced_and_the_tail_after_it_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the old checkpoint, with a tail that begins later, would lack what changed in between."""
    log, _, _ = open_log(DirectoryDisk(tmp_path / "log"))
    commit(log, [appended(log, [b"x" * 500] * 3), events(log, 0)])
    log.write_checkpoint(log.mark(), b"first")
    read, struck = DirectoryDisk.read, 0

    def reading(disk: DirectoryDisk, name: str, *args: Any) -> bytes:
        nonlocal struck
        if name == newest_segment.NAME and not struck:  # the checkpoints are copied, the tail is not listed yet
            struck += 1
            for number in range(20):
                commit(log, [appended(log, [b"x" * 500] * 3), events(log, number), change(number)])
            for state in (b"second", b"third"):
                log.write_checkpoint(log.mark(), state)
            assert seal(log)
        return read(disk, name, *args)

    monkeypatch.setattr(DirectoryDisk, "read", reading)
    made = backup(tmp_path / "log", tmp_path / "copy")
    log.close()
    assert struck
    assert made.report.clean
    copy, records, recovery = open_log(DirectoryDisk(tmp_path / "copy"))
    copy.close()
    assert recovery.report.clean, recovery.report.describe()
    assert (recovery.snapshot, records) == (b"third", [])


def test_l9_a_backup_whose_tail_was_sealed_while_it_was_copied_has_all_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the tail are in it twice then, but what they changed since the checkpoint is in the tail alone."""
    log, _, _ = open_log(DirectoryDisk(tmp_path / "log"))
    commit(log, [appended(log, [b"x" * 500] * 3), events(log, 0)])
    log.write_checkpoint(log.mark(), b"first")
    for number in range(20):
        commit(log, [appended(log, [b"x" * 500] * 3), events(log, number), change(number)])
    listing, listed = DirectoryDisk.list, 0

    def sealing(disk: DirectoryDisk) -> list[str]:
        nonlocal listed
        listed += 1
        if listed == 3:  # the checkpoints and the tail are copied, the sealed files are not listed yet
            for state in (b"second", b"third"):
                log.write_checkpoint(log.mark(), state)
            assert seal(log)
        return listing(disk)

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryDisk, "list", sealing)
        made = backup(tmp_path / "log", tmp_path / "copy")
    end = log.next_offset, log.next_position
    log.close()
    assert made.report.clean, made.report.describe()
    assert list((tmp_path / "copy" / "sealed").iterdir()), "they are in both"
    for state, count in ((b"first", 60), (b"again", 0)):
        copy, records, recovery = open_log(DirectoryDisk(tmp_path / "copy"))
        assert recovery.report.clean, recovery.report.describe()
        assert (recovery.snapshot, len(records)) == (state, count)
        assert (copy.next_offset, copy.next_position) == end
        reader = Reader(DirectoryDisk(tmp_path / "copy", create=False))
        assert [
            offset for record in reader.messages() for offset in range(record.first, record.first + len(record))
        ] == [*range(end[0])]
        for again in (b"before", b"again"):
            copy.write_checkpoint(copy.mark(), again)
        seal(copy)
        copy.close()
        assert check(DirectoryDisk(tmp_path / "copy")).clean


def test_l9_a_backup_of_a_damaged_directory_says_so(tmp_path: Path) -> None:
    make(tmp_path / "log")
    tail = sorted(file for file in (tmp_path / "log" / "tail").iterdir() if file.read_bytes().strip(b"\0"))[0]
    data = bytearray(tail.read_bytes())
    data[100] ^= 1
    tail.write_bytes(bytes(data))
    code, told = run("backup", tmp_path / "log", tmp_path / "copy")
    assert (code, told["whole"]) == (1, False)
    assert run("check", tmp_path / "copy")[0] == 1
