"""Every test that `docs/five-systems.md` names exists, and every promise names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "five-systems.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda value: value if value.startswith("test_") else "")
def test_the_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^\s*(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{file}::{name}"


def test_every_promise_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and line.count("|") == 4]
    promises = [row for row in rows if not row.startswith(("| what it promises", "|---"))]
    assert len(promises) > 50
    assert [row for row in promises if "`tests/" not in row] == []
