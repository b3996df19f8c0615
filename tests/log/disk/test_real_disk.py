"""L2, L5 on the real disk: its system calls are recorded, and a power loss is played at every one of them.

That the proof can fail is shown by planted bugs: each leaves out one sync, and each is found.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest

from remuda.log.disk import Disk, directory, system
from remuda.log.disk.system import sync_folder
from remuda.log.readers.reader import Reader
from remuda.log.retention.collect import collect
from remuda.log.sealed.seal import seal
from remuda.log.tail.writer import LogOptions
from tests.log.recorded import Machine, Recorder
from tests.log.samples import appended, commit, events, open_log

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]  # thousands of states, on a machine that may be busy

OPTIONS: Final = LogOptions(segment_bytes=900, reserve_bytes=512, spare_bytes=64)
COLLECTED: Final = set(range(13))
"""Messages, and events that tell of them alone, which the log lets go in the course of its life."""


class Promise(NamedTuple):
    """From a call on, so many messages and events are confirmed."""

    since: int
    messages: int
    events: int


def work(disk: Disk, recorder: Recorder, confirmed: list[Promise]) -> None:
    """A life of a log, with what was confirmed, and when."""
    log, _, _ = open_log(disk, OPTIONS)
    for number in range(24):
        commit(log, [appended(log, [b"%d " % number + b"x" * 40] * 3), events(log, 3 * number)])
        confirmed.append(Promise(len(recorder.calls), log.next_offset, log.next_position))
        if number % 4 == 3:
            log.write_checkpoint(log.mark(), b"state %d" % number)
            seal(log)
        if number == 18:
            collect(log, lambda first, last: [(first, last - first + 1)] if last > 12 else [])
    log.close()


def check_power_losses(calls: Recorder, confirmed: list[Promise], seeds: int = 2, since: int = 0) -> int:
    """After a power loss at any call all that was confirmed is there, and no file is damaged."""
    machine = Machine(calls.root)
    states = 0
    for at, call in enumerate(calls.calls, 1):
        machine.play(call)
        if at <= since:
            continue
        promised = [promise for promise in confirmed if promise.since <= at][-1:] or [Promise(0, 0, 0)]
        messages, events = set(range(promised[0].messages)), set(range(promised[0].events))
        for seed in range(seeds):
            disk = machine.after_power_loss(random.Random(f"{at} {seed}"))
            where = f"after call {at}: {call.kind} {call.place}"
            log, _, recovery = open_log(disk)
            report = recovery.report
            assert not report.damages, f"{where}: {report.describe()}"
            assert not report.damaged_checkpoints, f"{where}: {report.describe()}"
            assert not report.state_lost, where
            found = {offset for record in Reader(disk).messages() for offset in _numbers(record)}
            told = {position for record in Reader(disk).events() for position in _numbers(record)}
            assert messages - COLLECTED <= found, f"{where}: messages {messages - found} are lost"
            assert events - COLLECTED <= told, f"{where}: events {events - told} are lost"
            assert log.next_offset >= len(messages), where
            states += 1
    return states


def _numbers(record: Any) -> range:
    return range(record.first, record.first + len(record))


def recorded(
    path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType = directory
) -> tuple[Recorder, list[Promise]]:
    recorder, confirmed = Recorder(path), list[Promise]()
    with recorder.recording(monkeypatch):
        work(module.DirectoryDisk(path), recorder, confirmed)
    return recorder, confirmed


def test_l2_l5_a_power_loss_at_every_system_call_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, confirmed = recorded(tmp_path / "log", monkeypatch)
    kinds = {call.kind for call in calls.calls}
    assert {"create", "write", "sync", "sync folder", "rename", "unlink", "mkdir", "allocate", "truncate"} <= kinds
    assert check_power_losses(calls, confirmed) > 300


class Killed(BaseException):
    """The process ends here."""


def killed_at(path: Path, sync: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, list[Promise], int] | None:
    """A life that ends just before a sync of a folder, given by its number, and a next one that builds on what it left;
    also how many calls the first one made. None if it was over by then."""
    recorder, confirmed, left = Recorder(path), list[Promise](), sync

    def dying(folder: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        sync_folder(folder)

    with recorder.recording(monkeypatch):
        disk = directory.DirectoryDisk(path)
        with monkeypatch.context() as patched:
            for module in (directory, system):
                patched.setattr(module, "sync_folder", dying)
            try:
                work(disk, recorder, confirmed)
            except Killed:
                disk.unlock()
            else:
                return None
        before = len(recorder.calls)
        log, _, _ = open_log(directory.DirectoryDisk(path), OPTIONS)
        seal(log)
        commit(log, [appended(log, [b"after"]), events(log, 0)])
        confirmed.append(Promise(len(recorder.calls), log.next_offset, log.next_position))
        log.close()
    return recorder, confirmed, before


def test_l2_l5_what_a_killed_process_did_not_sync_is_synced_before_anything_builds_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a checkpoint that is seen, and for whose sake a segment is removed, could be gone after a power loss."""
    sync = 0
    while (lives := killed_at(tmp_path / str(sync := sync + 1), sync, monkeypatch)) is not None:
        calls, confirmed, before = lives
        check_power_losses(calls, confirmed, seeds=1, since=before)
    assert sync > 30


def planted(old: str, new: str) -> ModuleType:
    """The module of the real disk with one change, which may be in the files that it opens."""
    places = [module for module in (directory, system) if old in Path(module.__file__ or "").read_text()]
    assert len(places) == 1, old
    changed = changed_module(places[0], old, new)
    if places == [directory]:
        return changed
    whole = changed_module(directory, "", "")
    changed.quick_write = lambda handle, data, at: os.pwrite(handle, data, at)  # type: ignore[attr-defined]
    whole.DirectoryFile = changed.DirectoryFile  # type: ignore[attr-defined]
    return whole


def changed_module(original: ModuleType, old: str, new: str) -> ModuleType:
    source = Path(original.__file__ or "").read_text()
    assert not old or source.count(old) == 1, old
    spec = importlib.util.spec_from_loader("remuda.log.planted", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = original.__file__
    sys.modules[spec.name] = module
    try:
        exec(compile(source.replace(old, new) if old else source, original.__file__ or "", "exec"), module.__dict__)
    finally:
        del sys.modules[spec.name]
    return module


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("                    os.fsync(handle)\n", ""),
        ("                raise\n            sync_folder(path.parent)\n", "                raise\n"),
        ("            os.replace(self._root / source, path)\n            sync_folder(path.parent)\n",
         "            os.replace(self._root / source, path)\n"),
        ("            datasync(self._handle)\n", "            pass\n"),
        ("                sync_folder(self._path.parent)\n", "                pass\n"),
        ("            sync_folder(folder.parent)\n", ""),
    ],
    ids=["content of an atomic write", "name of an atomic write", "name after a rename", "content of the tail",
         "name of a segment", "name of a folder"],
)  # fmt: skip
def test_a_missing_sync_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    calls, confirmed = recorded(tmp_path / "log", monkeypatch, planted(old, new))
    with pytest.raises(AssertionError, match="after call"):
        check_power_losses(calls, confirmed, seeds=4)
