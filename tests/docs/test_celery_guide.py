"""The Celery code of docs/coming-from-celery.md, marked `python celery`, runs on Celery itself.

What Remuda's snippets beside it print is checked with those of all other pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-celery.md"
SECTION = re.compile(
    r'^## ([^\n]+)\n<div class="grid" markdown>\n\n```python celery\n(.*?)^```\n\n```python\n', re.MULTILINE | re.DOTALL
)
IDIOMS = dict(SECTION.findall(PAGE.read_text()))
EAGER = """
broker_url = "memory://"
result_backend = "cache+memory://"
task_always_eager = True
task_store_eager_result = True
"""
FAILS = {"Errors in a canvas": "ValueError: no such card"}
"""What ends where it is called, because its tasks run there."""


def test_each_idiom_of_celery_has_its_twin() -> None:
    assert len(IDIOMS) == PAGE.read_text().count("```python celery\n") == 18


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_is_celery(name: str, tmp_path: Path) -> None:
    """Each is a program that real Celery takes; tasks run where they are called, so that no worker is needed."""
    (tmp_path / "celeryconfig.py").write_text(EAGER)
    (tmp_path / "app.py").write_text(IDIOMS[name])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "app.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "CELERY_LOADER": "default"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    error = done.stderr.strip().rpartition("\n")[2]
    assert (done.returncode, error if done.returncode else None) == ((1, FAILS[name]) if name in FAILS else (0, None))
