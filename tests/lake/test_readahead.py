"""P6: the Arrow stream reads ahead by some bytes and no more, whatever the size of the rows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import remuda
from remuda.lake import readahead
from remuda.lake.readahead import read_ahead
from tests.spark.samples import half_sealed


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


class Source:
    """Batches of one number each, and how many of them were read."""

    def __init__(self) -> None:
        self.read = 0
        self.open = 0
        self._guard = threading.Lock()

    def part(self, numbers: range) -> Iterator[pa.RecordBatch]:
        with self._guard:
            self.open += 1
        try:
            for number in numbers:
                with self._guard:
                    self.read += 1
                yield pa.RecordBatch.from_pydict({"n": [number]})
        finally:
            with self._guard:
                self.open -= 1


def test_no_more_is_read_ahead_than_waits_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "_PART_BYTES", 1)
    source = Source()
    batches = read_ahead(source.part, [range(first, first + 100) for first in range(0, 1000, 100)], 3)
    assert next(batches)["n"].to_pylist() == [0]
    assert eventually(lambda: source.read == 7)  # of three parts one that waits and one in hand, and the one taken
    assert [batch["n"][0].as_py() for batch in batches] == list(range(1, 1000))
    assert source.open == 0


def test_what_is_left_half_way_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "_PART_BYTES", 1)
    source = Source()
    batches = read_ahead(source.part, [range(100), range(100, 200)], 2)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert source.open == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "remuda-arrow"]


def test_an_error_comes_after_what_was_read_before_it() -> None:
    def broken(part: range) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [part.start]})
        if part.start:
            raise ValueError("the disk is gone")

    batches = read_ahead(broken, [range(1), range(1, 2), range(2, 3)], 2)
    assert [next(batches)["n"][0].as_py() for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="the disk is gone"):
        next(batches)


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    reader = remuda.arrow(tmp_path, columns=["offset"]).reader()
    found: list[int] = []

    def take() -> None:
        for batch in reader:
            found.extend(batch.column(0).to_pylist())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1600))


def test_a_program_that_forgets_a_reader_can_end(tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    program = (
        "import remuda; from remuda.lake import readahead; readahead._PART_BYTES = 1\n"
        f"forgotten = remuda.arrow({str(tmp_path)!r}).reader(); print(forgotten.read_next_batch().num_rows > 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("True\n", "")
