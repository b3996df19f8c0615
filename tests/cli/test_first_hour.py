"""U3 U4: what a newcomer may be told in the first hour stands in docs/troubleshooting.md, as it is told."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.model.values.extras import MissingExtra
from remuda.spark.session.java import JavaMissing, find_java
from tests.cli.kit import APP, Remuda, python

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md").read_text()
SECTION = PAGE[PAGE.index("## The first hour") : PAGE.index("## Errors")]
ROWS = [row for row in re.findall(r"^\| `(.+?)` \|", SECTION, re.MULTILINE) if not row.startswith("remuda:")]


def pattern(row: str) -> re.Pattern[str]:
    return re.compile(".+?".join(map(re.escape, row.split("…"))))


def told(remuda: Remuda, folder: Path) -> Iterator[str]:
    """What commands say that go wrong as in the first hour."""
    (folder / "empty").mkdir()
    (folder / "broken.py").write_text("import nothing_like_it\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments in (
            ["run", "ap:bus"], ["run", "app:buss"], ["run", "broken:bus"], ["queues", "date"], ["queues", "empty"],
            ["messages", "data", "shop"], ["message", "data", "nothing"],
            ["run", "app:bus", "--dashboard", f"127.0.0.1:{taken.getsockname()[1]}"],
        ):  # fmt: skip
            yield remuda(*arguments, code=1).err
    for sent in (["order.placed", '{"id": 2}'], ["order.placed", '{"id": "x"}'], ["order.place", "1"]):
        remuda("publish", "data", *sent)
    (folder / "last.py").write_text(APP.replace('retry=["1h"]', "retry=[]"))
    remuda("publish", "data", "order.placed", '{"id": 2}')
    for app in ("app", "last"):
        process = python(folder, "-m", "remuda.cli", "run", f"{app}:bus", "--until-idle")
        yield process.communicate(timeout=100)[0]
        remuda("publish", "data", "order.placed", '{"id": 2}')
    yield str(MissingExtra("The dashboard", "server"))
    with pytest.raises(JavaMissing) as missing:
        find_java({"JAVA_HOME": str(folder)})
    yield str(missing.value)


def test_u4_what_a_newcomer_is_told_has_its_row(remuda: Remuda, data: str, folder: Path) -> None:
    """U3 U4: each row is told, and each error has a row."""
    said = list(told(remuda, folder))
    sys.modules.pop("broken", None)
    assert [row for row in ROWS if not any(pattern(row).search(text) for text in said)] == []
    errors = [text for text in said if text.startswith("error:")]
    assert len(errors) == 8
    assert [text for text in errors if not any(pattern(row).search(text) for row in ROWS)] == []
