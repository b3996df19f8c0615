"""Every Python block of the README and the docs runs, each in a directory of its own.

A block that cannot run by itself is marked `python no-run`; it must still be Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import remuda

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python(?P<mark> no-run)?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def blocks() -> list[tuple[str, str, bool]]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{page.name}:{line}", match["code"], match["mark"] is None))
    return found


RUNNABLE = {name: code for name, code, runs in blocks() if runs}


def run(code: str, folder: Path) -> str:
    (folder / "app.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[str]]]:
    """What each block prints, several at a time."""
    with ThreadPoolExecutor(4) as pool:
        yield {name: pool.submit(run, code, tmp_path_factory.mktemp("block")) for name, code in RUNNABLE.items()}


@pytest.mark.parametrize("name", RUNNABLE)
def test_block_runs(name: str, printed: dict[str, Future[str]]) -> None:
    """It ends well, and prints the lines that stand in it after `#>`."""
    output = printed[name].result()
    for line in re.findall(r"^#> (.*)$", RUNNABLE[name], re.MULTILINE):
        assert line in output


def test_blocks_that_do_not_run_are_python_and_few() -> None:
    idle = [(name, code) for name, code, runs in blocks() if not runs]
    for name, code in idle:
        compile(code, name, "exec")
    assert len(idle) <= len(RUNNABLE) // 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """What a renderer makes of a page's headings: lower case, dashes for blanks, no punctuation."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_name_a_heading(page: Path) -> None:
    named = [(page.parent / target if target else page, name) for target, name in ANCHOR.findall(page.read_text())]
    assert [(target.name, name) for target, name in named if name not in anchors(target)] == []
