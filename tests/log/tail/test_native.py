"""The short way of a single record to its file, in C: the same bytes as in Python, and nothing done where it does not
fit. It is built for these tests, whatever is installed, and each way runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import native
from remuda.log.disk import DirectoryDisk
from remuda.log.segments import HEADER_BYTES, parse_tail
from remuda.log.tail.tail_frames import Frame, scan

ROOT = Path(__file__).resolve().parents[3]
WAYS = ["in C", "in Python"]

BEGIN = """
import importlib.util, json, os, sys
from pathlib import Path
if sys.argv[1] != "":
    for path in Path(sys.argv[1]).glob("_*"):
        spec = importlib.util.spec_from_file_location("remuda.native." + path.name.split(".")[0], path)
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
else:
    os.environ["REMUDA_PURE"] = "1"
from remuda import native
assert (native.tail is not None) == (sys.argv[1] != "")
directory = Path(sys.argv[2])
"""

LOG = (
    BEGIN
    + """
from tests.log.samples import appended, events, open_log
from remuda.log.disk import DirectoryDisk
from remuda.log.tail.writer import LogOptions
from remuda.model.messages import Messages
from remuda.model.records import Appended

log, _, _ = open_log(DirectoryDisk(directory), LogOptions(segment_bytes=32_000, reserve_bytes=8192, spare_bytes=64))
sizes, short, write_single, frame_single = [], [], log.write_single, log.frame_single
log.write_single = lambda record: short.append(write_single(record)) or short[-1]
log.frame_single = lambda segment, record: short.append(frame_single(segment, record)) or short[-1]
def write(record, size=0):
    log.reserve(70_000)
    sizes.append(log.write_single(record) or log.append_now(record))
    if not sizes[-1]:
        log.append(record)
        batch = log.take()
        batch.write()
        if size:
            batch.sync()

for number in range(100):
    write(appended(log, [b"%d " % number + bytes(number)]), number % 50 == 0)
    write(events(log, number))
    if number % 40 == 7:
        write(appended(log, [b"a", b"b" * 40_000, b"c"]))
        write(appended(log, []))
        for record in (appended(log, [b"pending"]), Appended(log.next_offset + 1, 7, Messages([b"!"], "x"), ("q",))):
            log.append(record)
        write(events(log, number, 3))
        write(events(log, number * 100, 5_000))
    if number % 90 == 8:
        log.roll(1 << 60)
    for ids, name in ((range(5, 6), "é"), (["own"], "x"), (None, "x"), (range((1 << 63) - 9, (1 << 63) - 8), "x")):
        messages = Messages([b"!"], name, ids, headers={"a": "b"} if number % 2 else {}, priority=number % 32)
        write(Appended(log.next_offset, 7, messages, ("q",)))
found = [log.find_id(wanted) for wanted in ("5", "own", str((1 << 63) - 9), "nobody")]
lives = [len(log.events_of(offset)) for offset in range(0, log.next_offset, 7)]
log.close()
print(json.dumps([sum(map(bool, short)), [sizes, found, lives, log.next_offset, log.next_position]]))
"""
)

HOSTILE = (
    BEGIN
    + """
import resource, signal
from remuda import Message, StorageError, open_broker
with open_broker(directory, sync="os", shared=False) as broker:
    broker.create_queue("q", type="pull")
    for number in range(5):
        broker.publish(Message("q", b"%d" % number))
    log = broker.runtime.engine.log
    for wrong in (None, 5, b"", object(), Message("q", b"")):
        assert log.write_single(wrong) == 0
    if native.tail is not None:
        for verb, *wrong in (
            (log.arm, 1, 2), (log.arm, None, None, "3"), (log.go_to,), (log.go_to, 1, 2, b"short"),
            (log.go_to, 1, 2, "textual8"), (log.frame_single, None), (log.write_single,),
        ):
            try:
                verb(*wrong)
            except (TypeError, ValueError):
                continue
            raise AssertionError(wrong)
        log.arm(object(), object(), 1)  # of another segment: nothing is written there
        for wrong in (None, 5, Message("q", b"")):
            assert log.frame_single(log._active, wrong) is None
    # The disk takes no more: told as ever, and nothing counts that was not written.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    segment = next(directory.glob("tail/*.log"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log._byte + 100, before[1]))
    refused = 0
    try:
        broker.publish(Message("q", b"x" * 200))
    except StorageError:
        refused = 1
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    print(json.dumps(refused))
    sys.stdout.flush()
    os._exit(0)
"""
)


WHOLE_SEGMENTS = (
    BEGIN
    + """
from tests.log.samples import appended, open_log
from remuda.log.disk import DirectoryDisk
from remuda.log.tail.writer import LogOptions

log, _, _ = open_log(DirectoryDisk(directory), LogOptions(segment_bytes=32_000, reserve_bytes=8192, spare_bytes=64))
usual = 0
for number in range(1000):
    if log.room < 1_000:
        log.reserve(1_000)
    record = appended(log, [b"%d " % number + bytes(100)])
    if not (log.write_single(record) or log.append_now(record)):
        usual += 1
        log.append(record)
        log.take().write()
segments = log._active.sequence
log.close()
log, _, _ = open_log(DirectoryDisk(directory))
assert log.fetch([(0, 1000)]).messages.bodies == [b"%d " % number + bytes(100) for number in range(1000)]
log.close()
print(json.dumps([usual, segments]))
"""
)


def run(script: str, way: str, built: str, directory: Path) -> Any:
    sources = Path(native.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), str(ROOT)])}
    environment.pop("REMUDA_PURE", None)
    done = subprocess.run(
        [sys.executable, "-c", script, built if way == "in C" else "", directory],
        env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def frames(directory: Path) -> Iterator[tuple[int, int, bytes]]:
    """Everything that was written, but for the markers, which are chosen by chance."""
    for path in sorted(directory.glob("tail/*.log")):
        segment = parse_tail(f"tail/{path.name}")
        assert segment is not None
        for item in scan(path.read_bytes()[HEADER_BYTES:], segment.marker):
            assert type(item) is Frame
            yield item.number, item.kind, item.payload


def test_l2_both_ways_write_the_same(built: str, tmp_path: Path) -> None:
    (in_c, told), (in_python, same) = (run(LOG, way, built, tmp_path / way) for way in WAYS)
    assert told == same
    sizes, found = told[:2]
    assert None not in found[:3], "each id is found"
    assert found[3] is None
    assert in_python == 0
    assert in_c > len(sizes) / 2, "most went the short way"
    assert 0 in sizes, "what did not fit went the other"
    written = {way: list(frames(tmp_path / way)) for way in WAYS}
    assert len(written["in C"]) > 500
    assert written["in C"] == written["in Python"]


@pytest.mark.parametrize("way", WAYS)
def test_l1_single_records_take_the_short_way_up_to_the_end_of_a_segment(way: str, built: str, tmp_path: Path) -> None:
    """The usual way is taken for the first record of a segment, and twice at its half, to make the next one ready."""
    usual, segments = run(WHOLE_SEGMENTS, way, built, tmp_path)
    assert segments > 4
    assert usual <= 3 * segments


def test_l2_what_the_short_way_cannot_do_is_told_as_ever(built: str, tmp_path: Path) -> None:
    from tests.log.samples import open_log

    refused = run(HOSTILE, "in C", built, tmp_path / "data")
    log, _, recovery = open_log(DirectoryDisk(tmp_path / "data"))
    log.close()
    assert not recovery.report.damages
    assert log.next_offset == 6 - refused


def test_without_a_compiler_it_is_python_alone(tmp_path: Path) -> None:
    """And one line says so; what was built before is gone, so that it cannot differ from its source."""
    for name in ("broken", "sound"):
        (tmp_path / f"_{name}{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"")
    script = (
        "import sys; from pathlib import Path; import hatch_build; print(hatch_build.build(*map(Path, sys.argv[1:])))"
    )
    (tmp_path / "broken.c").write_text("this is not C;\n")
    (tmp_path / "sound.c").write_text("int sound;\n")
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stdout == "[]\n"
    assert len(done.stderr.splitlines()) == 1
    assert "works all the same" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.c", "sound.c"]


def test_without_an_interpreter_lock_nothing_is_built(tmp_path: Path) -> None:
    """What is in C, or compiled, counts on the lock."""
    (tmp_path / "sound.c").write_text("int sound;\n")
    script = (
        "import sys, sysconfig; from pathlib import Path; import hatch_build;"
        "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1;"
        "print(hatch_build.build(*map(Path, sys.argv[1:])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stdout == "[]\n"
    assert "this Python has no interpreter lock" in done.stderr
