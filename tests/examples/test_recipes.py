"""The recipes of docs/applications.md, marked `python recipe`, run with the real libraries."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.examples.test_examples import ENVIRONMENT, PYTHON, ROOT

PAGE = (ROOT / "docs" / "applications.md").read_text()
RECIPES = re.findall(r"^```python recipe\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def title(code: str) -> str:
    """The headings of the page above a recipe, and its place under them."""
    before = PAGE[: PAGE.index(code)]
    heading = re.findall(r"^##+ (.*)$", before.replace("```", "\n```"), re.MULTILINE)[-1]
    return f"{heading} {before.count(chr(10))}"


@pytest.mark.parametrize("code", RECIPES, ids=map(title, RECIPES))
def test_u4_a_recipe_runs_with_the_real_library(code: str, tmp_path: Path) -> None:
    """U4: and prints the lines that stand in it after `#>`."""
    (tmp_path / "app.py").write_text(code)
    done = subprocess.run(
        [*PYTHON, "app.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    wanted = re.findall(r"^#> (.*)$", code, re.MULTILINE)
    assert wanted
    for line in wanted:
        assert line in done.stdout, done.stderr


def test_each_library_has_its_recipe() -> None:
    for library in ("flask", "litestar", "django.tasks", "sentry_sdk", "structlog", "opentelemetry.sdk.trace"):
        assert any(f"from {library}" in code or f"import {library}" in code for code in RECIPES), library
