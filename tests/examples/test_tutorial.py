"""U3 U4: the tutorial, played as a reader would: files are written, commands typed, and what they print compared."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.test_examples import ENVIRONMENT, ROOT

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(
    r"^```(?:python (?P<file>\S+)|console(?P<needs> \w+)?)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


def steps(text: str) -> Iterator[tuple[str, str, str]]:
    """What a page has a reader do: ("file", its name, its text), or (needs, a command, what it prints)."""
    for block in BLOCK.finditer(text):
        if block["file"]:
            yield "file", block["file"], block["text"]
            continue
        for typed in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            command, _, printed = typed.partition("\n")
            yield (block["needs"] or "").strip(), command, printed


def pattern(line: str) -> re.Pattern[str]:
    """A line as printed; … stands for anything, and one blank for several."""
    words = (re.escape(word) if word != "…" else ".*?" for word in line.split())
    return re.compile(r"\s*".join(words))


def play(page: Path, folder: Path, environment: dict[str, str]) -> None:
    exported = dict(environment)
    for kind, what, text in steps(page.read_text()):
        if kind == "file":
            (folder / what).write_text(text)
            continue
        if what.startswith("export "):
            name, _, value = what.removeprefix("export ").partition("=")
            exported[name] = os.path.expandvars(value) if value[0] != "$" else exported[value[1:]]
            continue
        done = subprocess.run(
            ["bash", "-c", what], cwd=folder, env=exported, capture_output=True, text=True, timeout=280, check=False
        )
        said = done.stdout + done.stderr
        assert done.returncode == (1 if "error:" in text else 0), f"$ {what}\n{said}"
        for line in filter(str.strip, text.splitlines()):
            assert pattern(line).search(said), f"$ {what}\nshould print: {line}\n{said}"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{ENVIRONMENT['PATH']}"
    home = str(tmp_path_factory.mktemp("home"))
    return {**ENVIRONMENT, "PATH": binaries, "COLUMNS": "180", "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder, which goes from page to page."""
    return tmp_path_factory.mktemp("shop")


def test_u3_the_tutorial_is_as_it_says(folder: Path, environment: dict[str, str], clean_url: str) -> None:
    """U3: one test, because each page goes on where the last one ended."""
    assert len(PAGES) == 8
    for page in PAGES:
        play(page, folder, {**environment, "RABBITMQ": clean_url})


def test_each_page_leads_to_the_next() -> None:
    for page, following in itertools.pairwise(PAGES):
        assert f"]({following.name})" in page.read_text()
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), link
