"""What had been begun when a process died (B4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from remuda.broker.embedded.delivering import attempts as begun
from remuda.broker.embedded.delivering.attempts import AttemptMarks


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / begun.FILE)


def test_the_next_process_learns_what_was_begun(path: str) -> None:
    marks = AttemptMarks(path).track(100, 2)
    for offset in (5, 6, 7, 20):
        marks.begin(offset)
    after = AttemptMarks(path)
    assert after.runs(100, 5, 10) == [(5, 3)]
    assert after.runs(101, 15, 10) == [(20, 1)], "the second event of the same delivery"
    assert after.runs(100, 6, 1) == [(6, 1)]
    assert after.runs(100, 8, 5) == []


def test_of_other_deliveries_nobody_knows(path: str) -> None:
    AttemptMarks(path).track(100, 2).begin(5)
    after = AttemptMarks(path)
    assert after.runs(99, 5, 1) is None
    assert after.runs(102, 5, 1) is None
    assert AttemptMarks(path).runs(100, 5, 1) is None, "only the process right after it believes it"


def test_nothing_is_believed_after_another_boot(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    AttemptMarks(path).track(100, 1).begin(5)
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(begun, "_BOOT", tmp_path / "boot")
    assert AttemptMarks(path).runs(100, 5, 1) is None


def test_an_order_that_does_not_fit_makes_all_count(path: str) -> None:
    marks = AttemptMarks(path).track(100, 1)
    for offset in (9, 7, 5, 3):
        marks.begin(offset)
    marks.begin(1)
    assert AttemptMarks(path).runs(100, 0, 10) is None


def test_the_newest_deliveries_are_known(path: str) -> None:
    table = AttemptMarks(path)
    for lease in range(3000):
        table.track(lease, 1).begin(lease)
    after = AttemptMarks(path)
    assert after.runs(2999, 2999, 1) == [(2999, 1)]
    assert after.runs(0, 0, 1) is None


@pytest.mark.parametrize("damage", [b"", b"x" * 100, b"\xff" * begun._BYTES])
def test_a_damaged_file_says_nothing(path: str, damage: bytes) -> None:
    Path(path).write_bytes(damage)
    table = AttemptMarks(path)
    assert table.runs(0, 0, 1) is None
    table.track(1, 1).begin(1)
    assert AttemptMarks(path).runs(1, 1, 1) == [(1, 1)]


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    AttemptMarks(None).track(1, 1).begin(1)
    AttemptMarks(str(tmp_path / "missing" / "file")).track(1, 1).begin(1)
    assert AttemptMarks(None).runs(1, 1, 1) is None
