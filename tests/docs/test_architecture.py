"""The walks through the code name files and functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEPS = sorted(set(re.findall(r"`([a-z_/]+\.py): ([A-Za-z_.]+)`", PAGE)))
FILES = sorted(set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)\b", PAGE)))


@pytest.mark.parametrize(("file", "name"), STEPS, ids=lambda part: part)
def test_every_step_is_there(file: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((ROOT / "src" / "remuda" / file).read_text()).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        assert found, f"{file} has no {name}"
        body = getattr(found[0], "body", [])


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_there(file: str) -> None:
    assert (ROOT / "src" / "remuda" / file).is_file()
