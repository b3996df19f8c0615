"""L3, L7, L9: files that were renamed, swapped, copied or removed, by hand or by a careless restore."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from remuda import Message, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.cli.viewing.directory_view import DirectoryView
from remuda.log.disk import DirectoryDisk
from remuda.log.eventlog import open_event_log
from remuda.log.repair.check import CheckReport, check
from remuda.log.state import ledger, newest_segment
from remuda.model.errors import ForeignDirectory, StorageError

pytestmark = pytest.mark.faults


class Life(NamedTuple):
    """A directory as a kill left it, and which queue each of its messages waits in."""

    path: Path
    waiting: dict[bytes, str]
    dead: frozenset[bytes]


def opened(path: Path) -> EmbeddedBroker:
    return open_broker(path, sync="os", shared=False, worker=3, segment_bytes=1 << 16)


def number_of(body: bytes) -> int:
    return int(body.split()[0][2:])


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Two sealed segments, and three in the tail; the newest checkpoint lies in the middle of them."""
    path = tmp_path_factory.mktemp("life") / "log"
    waiting: dict[bytes, str] = {}
    dead: set[bytes] = set()
    with opened(path) as broker:
        for name in ("a", "b"):
            broker.create_queue(name, type="pull")
        for turn in range(33):
            queue = "ab"[turn % 2]
            bodies = [b"n-%d " % n + b"x" * 1200 for n in range(10 * turn, 10 * turn + 10)]
            broker.publish([Message(queue, body, id=f"id-{number_of(body)}") for body in bodies])
            waiting |= dict.fromkeys(bodies, queue)
            delivery = broker.pull(queue, 1)
            assert delivery is not None
            (body,) = delivery.bodies
            del waiting[body]
            if turn % 3:
                delivery.ack()
            else:
                delivery.dead(reason="no")
                dead.add(body)
            if turn in (12, 13, 20):
                broker.checkpoint()
                broker.runtime.upkeep.seal()
        copy = path.with_name("killed")
        shutil.copytree(path, copy)
    assert len(list((copy / "sealed").glob("messages-*"))) >= 2
    assert len(written(copy)) >= 3
    return Life(copy, waiting, frozenset(dead))


@pytest.fixture
def path(life: Life, tmp_path: Path) -> Path:
    return Path(shutil.copytree(life.path, tmp_path / "log"))


def written(path: Path) -> list[Path]:
    return [file for file in sorted((path / "tail").glob("*.log")) if file.read_bytes().strip(b"\0")]


def sealed(path: Path) -> list[Path]:
    return sorted((path / "sealed").glob("messages-*"))


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def looked_at(path: Path) -> CheckReport:
    return check(DirectoryDisk(path, create=False))


def taken(broker: EmbeddedBroker) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for info in broker.queues():
        while (delivery := broker.pull(info.name, 500)) is not None:
            assert not found.keys() & set(delivery.bodies)
            found |= dict.fromkeys(delivery.bodies, info.name)
            delivery.ack()
    return found


def copied(segment: Path, name: str) -> None:
    shutil.copy(segment, segment.with_name(name))


DISPLACED: dict[str, Callable[[list[Path]], object]] = {
    "swapped": lambda tail: swap(tail[0], tail[-1]),
    "another number": lambda tail: tail[-1].rename(tail[-1].with_name("00000000000000aa" + tail[-1].name[16:])),
    "another marker": lambda tail: tail[-1].rename(tail[-1].with_name(tail[-1].name[:17] + "ee" * 8 + ".log")),
    "copied ahead": lambda tail: copied(tail[0], "00000000000000aa" + tail[0].name[16:]),
    "copied behind": lambda tail: copied(tail[-1], "0000000000000000" + tail[-1].name[16:]),
    "copied beside": lambda tail: copied(tail[-1], tail[-1].name[:17] + "ff" * 8 + ".log"),
    "copied before": lambda tail: copied(tail[0], tail[0].name[:17] + "01" * 8 + ".log"),
}


@pytest.mark.parametrize("harm", DISPLACED)
def test_l9_segments_are_known_by_what_they_hold(life: Life, path: Path, harm: str) -> None:
    DISPLACED[harm](written(path))
    assert not looked_at(path).clean
    with opened(path) as broker:
        assert bool(broker.recovery.copies) == harm.startswith("copied")
        assert not broker.recovery.damages
        assert taken(broker) == life.waiting
    with opened(path) as broker:
        assert not taken(broker)


@pytest.mark.parametrize("harm", ["removed", "emptied", "renamed"])
def test_l9_a_newest_segment_that_went_away_is_missed(life: Life, path: Path, harm: str) -> None:
    noted = newest_segment.read(DirectoryDisk(path))
    assert noted is not None
    segment = written(path)[-1]
    if harm == "removed":
        segment.unlink()
    elif harm == "emptied":
        segment.write_bytes(b"")
    else:
        segment.rename(path / "tail" / "old.txt")
    told = looked_at(path)
    assert any("newest one, is missing" in finding.text for finding in told.findings)
    assert f"offset {noted.first.offset} " in told.describe()
    with opened(path) as broker:
        assert broker.recovery.cut_off == noted
        assert f"from offset {noted.first.offset} and position {noted.first.position}" in broker.recovery.describe()
        assert broker.publish(Message("c", b"new")).accepted == 1
        lost = set(life.waiting) - set(taken(broker))
        assert lost
        assert {number_of(body) for body in lost} <= set(range(noted.first.offset, 330))


def test_l9_a_note_of_the_newest_segment_that_is_damaged_costs_nothing_else(life: Life, path: Path) -> None:
    (path / newest_segment.NAME).write_bytes(b"nonsense")
    assert [finding.file for finding in looked_at(path).findings] == [newest_segment.NAME]
    with opened(path) as broker:
        assert taken(broker) == life.waiting


@pytest.mark.parametrize("table", ["messages", "events"])
@pytest.mark.parametrize("which", [0, -1])
def test_l9_a_sealed_file_that_went_away_is_reported_by_number(life: Life, path: Path, table: str, which: int) -> None:
    file = sorted((path / "sealed").glob(f"{table}-*"))[which]
    first, last = (int(part) for part in file.stem.split("-")[1:])
    file.unlink()
    told = looked_at(path)
    assert {getattr(finding, table) for finding in told.findings} == {(first, last)}
    with opened(path) as broker:
        assert {n for damage in broker.recovery.damages for n in getattr(damage, table) or ()} == set(
            range(first, last + 1)
        )
        assert "was not collected" in broker.recovery.describe()
        missing = {number_of(body) for body in life.waiting.keys() - taken(broker).keys()}
        assert missing <= (set(range(first, last + 1)) if table == "messages" else set())
    assert not looked_at(path).clean, "it is still missing"


def test_l9_what_queues_hold_and_no_file_has_is_reported_where_nobody_noted_what_was_collected(
    life: Life, path: Path
) -> None:
    first, last = (int(part) for part in sealed(path)[0].stem.split("-")[1:])
    sealed(path)[0].unlink()
    (path / ledger.NAME).unlink()
    with opened(path) as broker:
        lost = {n for damage in broker.recovery.damages for n in damage.messages or ()}
        held = {number_of(body) for body in (*life.waiting, *life.dead)}
        assert lost == {n for n in held if first <= n <= last}
        assert broker.recovery.uncovered == (range(first, last + 1),)


def test_l9_a_middle_segment_that_went_away_is_reported_by_offset(life: Life, path: Path) -> None:
    segments = written(path)
    gone = [n for n in range(330) if b"n-%d xxx" % n in segments[1].read_bytes()]
    segments[1].unlink()
    with opened(path) as broker:
        lost = {n for damage in broker.recovery.damages for n in damage.messages or ()}
        assert lost >= set(gone)
        assert len(lost) <= len(gone) + 10
        assert set(life.waiting) - set(taken(broker)) <= {body for body in life.waiting if number_of(body) in lost}


def test_l3_damage_before_the_newest_checkpoint_is_reported_too(life: Life, path: Path) -> None:
    segment = written(path)[0]
    data = bytearray(segment.read_bytes())
    data[data.index(b" xxx")] ^= 1
    segment.write_bytes(data)
    with opened(path) as broker:
        (damage,) = broker.recovery.damages
        assert damage.file == f"tail/{segment.name}"
        assert damage.messages is not None
        assert len(damage.messages) == 10
        missing = {number_of(body) for body in set(life.waiting) - set(taken(broker))}
        assert missing <= set(damage.messages)


def test_l9_a_sealed_file_in_the_place_of_another_is_not_read_as_that(life: Life, path: Path) -> None:
    swap(*sealed(path)[:2])
    spans = [tuple(int(part) for part in file.stem.split("-")[1:]) for file in sealed(path)[:2]]
    told = looked_at(path)
    assert sum("was sealed as" in finding.text for finding in told.findings) == 2
    with opened(path) as broker:
        lost = {n for damage in broker.recovery.damages for n in damage.messages or ()}
        assert lost == {n for first, last in spans for n in range(first, last + 1)}
        found = taken(broker)
        assert {number_of(body) for body in set(life.waiting) - set(found)} <= lost
        broker.collect()


def test_l9_events_in_the_place_of_messages_are_damage_and_no_crash(life: Life, path: Path) -> None:
    swap(sealed(path)[0], sorted((path / "sealed").glob("events-*"))[0])
    assert not looked_at(path).clean
    with opened(path) as broker:
        assert broker.recovery.damages
        taken(broker)
        broker.collect()
        broker.checkpoint()


def indexes(path: Path) -> list[Path]:
    return sorted((path / "index").glob("*.ids"))


def empty(path: Path) -> None:
    for file in indexes(path):
        file.write_bytes(b"")


INDEXES: dict[str, Callable[[Path], object]] = {
    "emptied": empty,
    "swapped": lambda path: swap(*indexes(path)[:2]),
    "copied": lambda path: shutil.copy(*indexes(path)[:2]),
    "cut": lambda path: indexes(path)[0].write_bytes(indexes(path)[0].read_bytes()[:-8]),
    "removed": lambda path: shutil.rmtree(path / "index"),
}


@pytest.mark.parametrize("harm", INDEXES)
def test_l9_an_index_that_is_not_its_own_hides_no_message(life: Life, path: Path, harm: str) -> None:
    whole = {file.name: file.read_bytes() for file in indexes(path)}
    last = max(int(file.stem.split("-")[2]) for file in sealed(path))
    INDEXES[harm](path)
    findings = looked_at(path).findings
    assert all(finding.file.startswith("index/") for finding in findings)
    assert bool(findings) == (harm != "removed"), "one that is missing is made again"
    log = open_event_log(path)
    assert [log.offset_of(f"id-{n}") for n in range(0, last, 7)] == list(range(0, last, 7))
    assert log.offset_of("id-nobody") is None
    with opened(path) as broker:
        assert broker.message("id-3").offset == 3
        assert broker.recovery.clean
    assert {file.name: file.read_bytes() for file in indexes(path)} == whole, "it was made again"


def test_l9_messages_found_without_their_queue_come_out_whoever_asks(life: Life, path: Path) -> None:
    shutil.rmtree(path / "checkpoint")
    with opened(path) as broker:
        assert broker.recovery.state_lost
        with broker.subscribe("b", credit=1) as subscription:
            first = subscription.receive(timeout="30s")
            assert first is not None
            first.ack()
        found = taken(broker) | dict.fromkeys(first.bodies, "b")
        assert found == life.waiting


def test_l9_a_pipe_among_the_sealed_files_is_told_and_not_waited_for(path: Path) -> None:
    sealed(path)[0].unlink()
    os.mkfifo(sealed(path)[0].with_name("messages-00000000000000000000-00000000000000000049.parquet"))
    told: list[CheckReport] = []
    thread = threading.Thread(target=lambda: told.append(looked_at(path)), daemon=True)
    thread.start()
    thread.join(60)
    assert told, "the check waits for the other end of a pipe"
    assert any("pipe" in finding.text for finding in told[0].findings)


@pytest.mark.parametrize("folder", ["tail", "sealed", "index", "checkpoint", "spool"])
def test_l7_a_file_in_the_place_of_a_folder_is_refused(path: Path, folder: str) -> None:
    shutil.rmtree(path / folder, ignore_errors=True)
    (path / folder).write_bytes(b"x")
    assert not looked_at(path).clean
    with pytest.raises(ForeignDirectory, match="is a file, where Remuda has a folder"):
        opened(path)
    assert (path / folder).read_bytes() == b"x"


@pytest.mark.parametrize("marker", [b"[" * 100_000, b'{"remuda": true}', b'{"remuda": 0}', b'{"remuda": -1}'])
def test_l7_a_marker_that_is_nonsense_is_refused(path: Path, marker: bytes) -> None:
    (path / "remuda.json").write_bytes(marker)
    with pytest.raises(ForeignDirectory, match="not a marker"):
        opened(path)


@pytest.mark.parametrize("harm", ["removed", "renamed", "emptied", "tail removed"])
def test_l7_a_directory_that_goes_away_under_its_broker_stops_it_and_everyone_knows(path: Path, harm: str) -> None:
    broker = opened(path)
    told: list[BaseException | None] = []

    def wait() -> None:
        try:
            broker.pull("waiting", 1, timeout="60s")
            told.append(None)
        except StorageError as error:
            told.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    try:
        broker.publish(Message("a", b"kept"))
        thread.start()
        if harm == "removed":
            shutil.rmtree(path)
        elif harm == "renamed":
            path.rename(path.with_name("elsewhere"))
        elif harm == "emptied":
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        else:
            shutil.rmtree(path / "tail")
        thread.join(60)
        assert isinstance(told[0], StorageError)
        assert not broker.runtime.health().live
        with pytest.raises(StorageError, match="nothing more is written"):
            broker.publish(Message("a", b"lost"))
    finally:
        broker.close()
    assert harm in ("emptied", "tail removed") or not path.exists(), "it is not made again"


def test_l9_a_look_at_a_directory_changes_nothing(path: Path) -> None:
    copied(written(path)[-1], written(path)[-1].name[:17] + "ff" * 8 + ".log")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    looked_at(path)
    DirectoryView(path)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
