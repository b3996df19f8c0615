"""L4: a start reads the newest checkpoint that can be read, and what came after it."""

from __future__ import annotations

import random

import pytest

from remuda.log.disk import MemoryDisk
from remuda.log.sealed.seal import seal
from tests.log.repair.test_recovery import contents, disk_of
from tests.log.samples import commit, event_rows, events, fill, light, message_rows, open_log
from tests.log.simulated import PowerLoss, SimulatedDisk


def checkpoints(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list() if name.startswith("checkpoint/")]


def test_l4_the_two_newest_are_kept() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    for turn in range(5):
        fill(log, 3, seed=turn)
        log.write_checkpoint(log.mark(), str(turn).encode())
        assert len(checkpoints(disk)) == min(turn + 1, 2)
    _, _, recovery = open_log(disk)
    assert recovery.snapshot == b"4"


def test_l3_a_damaged_checkpoint_gives_way_to_the_older_one_at_every_byte() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    fill(log, 10)
    log.write_checkpoint(log.mark(), b"older")
    given = fill(log, 30, seed=1)
    log.write_checkpoint(log.mark(), b"newer")
    seal(log)
    newest = checkpoints(disk)[-1]
    data = disk.read(newest)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x40
        log, found, recovery = open_log(disk_of({**contents(disk), newest: bytes(broken)}))
        assert recovery.snapshot == b"older"
        assert message_rows(found) == light(message_rows(given))
        assert event_rows(found) == event_rows(given)
        assert recovery.report.damaged_checkpoints == (newest,)
        assert not recovery.report.state_lost
        assert newest in recovery.report.describe()
        log.write_checkpoint(log.mark(), b"mended")
        assert newest not in log.disk.list()


def test_l3_without_any_checkpoint_the_tail_is_read_and_the_loss_is_told() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    fill(log, 60)
    log.write_checkpoint(log.mark(), b"state")
    seal(log)
    end = log.next_offset, log.next_position
    given = fill(log, 5, seed=2)
    (name,) = checkpoints(disk)
    log, found, recovery = open_log(disk_of({**contents(disk), name: b"garbage"}))
    report = recovery.report
    assert recovery.snapshot is None
    assert report.state_lost
    assert report.sealed
    assert "rebuilt from the messages and events" in report.describe()
    assert [row[0] for row in message_rows(found)] == list(range(log.next_offset)), "sealed ones too"
    assert message_rows(found)[-len(message_rows(given)) :] == light(message_rows(given))
    assert log.next_offset == end[0] + len(message_rows(given))
    assert log.fetch([(0, 3)]).missing == []


def test_numbers_never_go_back_even_when_the_tail_is_lost() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    fill(log, 60)
    log.write_checkpoint(log.mark(), b"state")
    seal(log)
    expected = log.next_offset, log.next_position
    for kept in ("checkpoint/", "sealed/"):
        left = {name: data for name, data in contents(disk).items() if name.startswith(kept)}
        log, _, _ = open_log(disk_of(left))
        if kept == "checkpoint/":
            assert (log.next_offset, log.next_position) == expected
        else:
            assert 0 < log.next_offset <= expected[0]
        commit(log, [events(log, 0)])


@pytest.mark.parametrize("power", [False, True])
def test_l4_a_crash_while_checkpointing_leaves_one_to_start_from(power: bool) -> None:
    def play(disk: SimulatedDisk, done: list[bytes]) -> None:
        log, _, _ = open_log(disk)
        for turn in range(4):
            fill(log, 4, seed=turn)
            log.write_checkpoint(log.mark(), str(turn).encode())
            done.append(str(turn).encode())

    total = SimulatedDisk()
    play(total, [])
    for dies_at in range(1, total.operations + 1):
        disk, done = SimulatedDisk(dies_at=dies_at), list[bytes]()
        with pytest.raises(PowerLoss):
            play(disk, done)
        left = disk.after_power_loss(random.Random(dies_at)) if power else disk.after_kill()
        _, _, recovery = open_log(left)
        assert recovery.report.damages == ()
        assert not recovery.report.state_lost
        if done:
            assert recovery.snapshot is not None
            assert int(recovery.snapshot) >= int(done[-1])
