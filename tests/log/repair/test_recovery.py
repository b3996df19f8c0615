"""L3: damage never crashes a start, never gives a wrong record, and is never silent."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.log.disk import MemoryDisk
from remuda.log.repair.check import check
from remuda.log.repair.recovery import RecoveryReport
from remuda.log.segments import HEADER_BYTES
from remuda.log.tail.writer import LogOptions
from remuda.model.errors import UnsupportedFormat
from remuda.model.records import Record
from tests.log.samples import (
    appended,
    change,
    commit,
    event_rows,
    events,
    fill,
    light,
    message_rows,
    open_log,
    others,
    segments_of,
)
from tests.log.simulated import PowerLoss, SimulatedDisk

Files = dict[str, bytes]


def written(rounds: int = 60, seed: int = 0, *, checkpoint: bool = False) -> tuple[Files, list[Record]]:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=1500, reserve_bytes=0, spare_bytes=0))
    given = fill(log, rounds, seed)
    if checkpoint:
        log.write_checkpoint(log.mark(), b"first")
        given = fill(log, rounds, seed + 1)
    # A file without content is room for a segment that was never begun: nothing in it can be damaged.
    return {name: data for name, data in contents(disk).items() if data}, given


def contents(disk: MemoryDisk) -> Files:
    return {name: disk.read(name) for name in disk.list()}


def disk_of(files: Files) -> MemoryDisk:
    disk = MemoryDisk()
    for name, data in files.items():
        disk.write_atomic(name, data)
    return disk


def covered(report: RecoveryReport, kind: str) -> set[int]:
    return {number for damage in report.damages for number in getattr(damage, kind) or ()}


def check_exact(files: Files, given: list[Record], *, cut: bool = False) -> RecoveryReport:
    """Open damaged files: everything found is right, everything lost is in the report."""
    log, found, recovery = open_log(disk_of(files))
    report = recovery.report
    for kind, rows, expected in (
        ("messages", message_rows(found), light(message_rows(given))),
        ("events", event_rows(found), event_rows(given)),
    ):
        right = {row[0]: row for row in expected}
        numbers = [row[0] for row in rows]
        assert numbers == sorted(set(numbers)), "in order, each once"
        assert all(right[row[0]] == row for row in rows)
        lost = set(right) - set(numbers)
        end = report.next_offset if kind == "messages" else report.next_position
        reported = covered(report, kind)
        assert not reported & set(numbers), "what is there is not called lost"
        silent = {number for number in lost - reported if not (number >= end and (report.torn_bytes or cut))}
        assert not silent, (silent, report.describe())
        assert all(number < end for number in numbers)
    missing = len(others(given)) - len(others(found))
    assert missing == 0 or not report.clean or cut
    assert report.clean or report.describe()
    more = appended(log, [b"after"])
    commit(log, [more])
    assert log.fetch([(more.first, 1)]).messages.bodies == [b"after"]
    return report


def test_l3_a_torn_last_frame_is_cut_at_every_byte_and_reported_once() -> None:
    files, given = written(20)
    disk = disk_of(files)
    log, _, _ = open_log(disk)
    first = log.next_offset
    commit(log, [change(7)])
    name = max(segments_of(disk))
    begin = disk.size(name)
    last = appended(log, [b"the last one"] * 2)
    commit(log, [last])
    whole = disk.read(name)
    for end in range(begin, len(whole)):
        torn = disk_of({**contents(disk), name: whole[:end] + bytes(64)})
        log, found, recovery = open_log(torn)
        assert message_rows(found) == light(message_rows(given))
        assert others(found)[-1] == change(7)
        assert recovery.report.damages == ()
        assert recovery.report.torn_bytes == len(whole[begin:end].rstrip(b"\0"))
        assert ("were cut" in recovery.report.describe()) == (end > begin)
        assert torn.size(name) == begin
        assert log.next_offset == first
        commit(log, [appended(log, [b"new"])])
        log, found, recovery = open_log(torn)
        assert recovery.report.clean, recovery.report.describe()
        assert message_rows(found)[-1][0] == first


def test_l3_every_flipped_byte_is_survived_and_accounted_for() -> None:
    files, given = written(16)
    for name, data in files.items():
        for at in range(len(data)):
            broken = bytearray(data)
            broken[at] ^= 1 << (at % 8)
            report = check_exact({**files, name: bytes(broken)}, given)
            assert not report.clean, (name, at)


@pytest.mark.parametrize("harm", [1, 8])
def test_l3_a_damaged_marker_hides_its_own_frame_alone(harm: int) -> None:
    """No checksum covers a marker. That of a segment's first frame does not make the rest of the file unreadable."""
    files, _ = written()
    for name, data in files.items():
        if not name.startswith("tail/") or not name.endswith(".log"):
            continue
        broken = bytearray(data)
        broken[HEADER_BYTES : HEADER_BYTES + harm] = bytes(harm)
        _, _, recovery = open_log(disk_of({**files, name: bytes(broken)}))
        (damage,) = recovery.report.damages
        assert (damage.file, damage.start, damage.records, recovery.report.torn_bytes) == (name, HEADER_BYTES, 1, 0)


def test_l3_a_damaged_frame_names_exactly_its_messages() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    commit(log, [appended(log, [b"x"] * 10)])
    (name,) = segments_of(disk)
    begin = disk.size(name)
    commit(log, [appended(log, [b"lost"] * 5)])
    end = disk.size(name)
    commit(log, [events(log, 0), change()])
    broken = bytearray(disk.read(name))
    broken[end - 2] ^= 1
    log, _, recovery = open_log(disk_of({name: bytes(broken)}))
    (damage,) = recovery.report.damages
    assert damage == (name, begin, end, range(10, 15), None, 1)
    assert recovery.report.describe() == (
        f"{name}: bytes {begin} to {end - 1} cannot be read; lost: 5 messages (10 to 14), 1 records"
    )
    assert log.next_offset == 15, "numbers once given never come back"
    fetched = log.fetch([(8, 10)])
    assert fetched.offsets == [(8, 2)]
    assert fetched.missing == [(10, 8)]
    log, _, again = open_log(disk_of({name: bytes(broken)}))
    assert again.report.damages == recovery.report.damages


def test_l3_a_lost_change_of_a_queue_is_reported() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    commit(log, [change(1), change(2), change(3)])
    (name,) = segments_of(disk)
    broken = bytearray(disk.read(name))
    broken[broken.index(b"queue-2")] ^= 1
    _, found, recovery = open_log(disk_of({name: bytes(broken)}))
    assert found == [change(1), change(3)]
    assert "lost: 1 records" in recovery.report.describe()


def test_l3_a_damaged_header_costs_nothing() -> None:
    files, given = written(30)
    for name, data in files.items():
        if not name.endswith(".log"):
            continue
        report = check_exact({**files, name: bytes(HEADER_BYTES) + data[HEADER_BYTES:]}, given)
        assert covered(report, "messages") == set()
        assert covered(report, "events") == set()


def test_l3_a_lost_segment_is_reported_by_its_offsets() -> None:
    files, given = written(80)
    names = sorted(name for name in files if name.endswith(".log"))
    assert len(names) > 3
    for name in names:
        left = {other: data for other, data in files.items() if other != name}
        report = check_exact(left, given, cut=name == names[-1])
        assert not report.clean
        assert (report.cut_off is not None) == (name == names[-1])


@pytest.mark.parametrize("harm", ["removed", "emptied", "zeroed"])
def test_l3_the_newest_segment_cannot_be_lost_without_a_word(harm: str) -> None:
    """Whenever the process is killed: opening and checking both tell it (L9)."""
    disk = SimulatedDisk()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=600, reserve_bytes=0, spare_bytes=0))
    for number in range(40):
        commit(log, [appended(log, [b"x" * 90])])
        killed = disk.after_kill()
        newest = max(name for name in segments_of(killed) if killed.read(name).strip(b"\0"))
        if harm == "removed":
            killed.remove(newest)
        else:
            size = killed.size(newest)
            killed.write_atomic(newest, b"" if harm == "emptied" else bytes(size))
        told = check(killed)
        assert any("newest one, is missing" in finding.text for finding in told.findings), number
        _, _, recovery = open_log(killed)
        assert recovery.report.cut_off is not None, number
        assert recovery.report.cut_off.first.offset <= number


def test_l3_a_crash_while_a_segment_is_begun_is_no_loss(pytestconfig: pytest.Config) -> None:
    """At every operation, by a kill and by a power loss: nothing that is whole is called damaged (L9)."""
    losses = 8 if pytestconfig.getoption("all") else 2
    for dies_at in range(1, 60):
        disk = SimulatedDisk(dies_at=dies_at)
        committed = 0
        with contextlib.suppress(PowerLoss):
            log, _, _ = open_log(disk, LogOptions(segment_bytes=600, reserve_bytes=0, spare_bytes=0))
            for _ in range(20):
                commit(log, [appended(log, [b"x" * 200])])
                committed += 1
        for left in (disk.after_kill(), *(disk.after_power_loss(random.Random(seed)) for seed in range(losses))):
            told = check(left)
            assert not [one for one in told.findings if "newest" in one.text + one.file], (dies_at, told.describe())
            log, found, recovery = open_log(left)
            assert recovery.report.cut_off is None
            assert recovery.report.damaged_note is None
            assert not recovery.report.damages
            assert len(message_rows(found)) >= committed
            assert bool(recovery.report.torn_bytes) == (not told.clean)


def holes(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) - 1)
    return data[:at] + bytes(min(rng.randrange(1, 400), len(data) - at - 1)) + data[at:][400:]


def garbage(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.randrange(1, 200)) + data[at + rng.randrange(200) :]


def truncation(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def noise(rng: random.Random, data: bytes) -> bytes:
    return rng.randbytes(len(data))


def repeat(rng: random.Random, data: bytes) -> bytes:
    start, stop = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    return data + data[start:stop]


@pytest.mark.faults
@pytest.mark.parametrize("damage", [holes, garbage, truncation, noise, repeat])
def test_l3_any_damage_is_survived_and_accounted_for(damage: Callable[[random.Random, bytes], bytes]) -> None:
    files, given = written(50)
    rng = random.Random(damage.__name__)
    for _ in range(150):
        name = rng.choice(sorted(files))
        check_exact({**files, name: damage(rng, files[name])}, given, cut=True)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 255)), min_size=1, max_size=12))
def test_l3_many_flips_at_once(flips: list[tuple[int, int]]) -> None:
    files, given = written(40, seed=4)
    broken = {name: bytearray(data) for name, data in files.items()}
    names = sorted(broken)
    for place, flip in flips:
        data = broken[names[place % len(names)]]
        data[place // len(names) % len(data)] ^= flip
    check_exact({name: bytes(data) for name, data in broken.items()}, given)


def test_l3_damage_after_a_checkpoint_is_exact_too() -> None:
    files, given = written(30, checkpoint=True)
    rng = random.Random(1)
    tails = sorted(name for name in files if name.startswith("tail/"))
    for _ in range(200):
        name = rng.choice(tails)
        broken = bytearray(files[name])
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        check_exact({**files, name: bytes(broken)}, given)


def test_a_body_that_holds_a_whole_frame_is_only_a_body() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    commit(log, [appended(log, [b"innocent"])])
    (name,) = segments_of(disk)
    stolen = disk.read(name)[HEADER_BYTES:]
    other = MemoryDisk()
    log, _, _ = open_log(other)
    given: list[Record] = [
        appended(log, [stolen * 3, b"x"]),
    ]
    commit(log, given)
    given.append(appended(log, [b"y"]))
    commit(log, given[1:])
    (name,) = segments_of(other)
    data = other.read(name)
    check_exact({name: data}, given)
    for at in range(HEADER_BYTES, HEADER_BYTES + 100):
        broken = bytearray(data)
        broken[at] ^= 4
        check_exact({name: bytes(broken)}, given)


def test_a_frame_of_the_same_file_in_a_wrong_place_is_not_taken() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    commit(log, [appended(log, [b"one"])])
    (name,) = segments_of(disk)
    first = disk.read(name)[HEADER_BYTES:]
    commit(log, [appended(log, [b"two"])])
    _, found, recovery = open_log(disk_of({name: disk.read(name) + first}))
    assert [row[0] for row in message_rows(found)] == [0, 1]
    assert recovery.report.torn_bytes == len(first)


@pytest.mark.parametrize("size", [0, 1, 43, 44, 45, 300])
def test_files_of_garbage_or_zeros_are_survived(size: int) -> None:
    rng = random.Random(size)
    for content in (bytes(size), rng.randbytes(size)):
        files = {
            "tail/0000000000000001-0101010101010101.log": content,
            "tail/notes.txt": content,
            "checkpoint/0000000000000001.ckpt": content,
        }
        log, found, _ = open_log(disk_of(files))
        assert found == []
        commit(log, [appended(log, [b"a"])])
        assert "tail/notes.txt" in log.disk.list()


def test_a_segment_of_a_newer_format_is_refused_not_cut() -> None:
    import google_crc32c

    files, _ = written(5)
    (name, data), *_ = files.items()
    changed = bytearray(data)
    changed[4] = 9
    changed[HEADER_BYTES - 4 : HEADER_BYTES] = google_crc32c.value(bytes(changed[: HEADER_BYTES - 4])).to_bytes(
        4, "little"
    )
    disk = disk_of({name: bytes(changed)})
    with pytest.raises(UnsupportedFormat, match="nothing was changed"):
        open_log(disk)
    assert disk.read(name) == bytes(changed)
