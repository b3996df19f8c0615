"""What people who pick up the project look for is there, and true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from remuda.broker.rabbitmq.support import SUPPORT
from remuda.model.operations.verbs import VERBS
from remuda.model.queues.options import QueueKwargs, QueueOptions
from remuda.public import MODULES
from tools.docs import changelog, spec, surface

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_contract_is_on_its_page_word_by_word() -> None:
    """Run `make docs` if this fails."""
    page = spec.TARGET.read_text()
    for letter, (title, rows) in spec.contract().items():
        assert f"## {letter}. {title}" in page
        for row in rows:
            assert f"| {row.id} | {row.text.replace('|', chr(92) + '|')} |" in page, f"{row.id} is out of date"


def test_each_row_of_the_contract_is_cited_where_its_page_says() -> None:
    """Run `make docs` if this fails. Tests that came since need not be on the page."""
    cited = spec.citations()
    for line in spec.TARGET.read_text().splitlines():
        if (row := re.match(r"\| ([A-Z]\d+) \|.*\|([^|]*)\|$", line)) is None:
            continue
        for name in re.findall(r"`([a-z_/0-9]+\.py)`", row[2]):
            assert cited[row[1]][f"tests/{name}"], f"{row[1]} is not cited in {name} any more"
    untold = {id for id, files in cited.items() if not files}
    assert not untold - {"L10", "U4"}, "no test cites these rows"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the file is written by the oldest Python")
def test_the_public_api_is_as_reviewed() -> None:
    """Run `make docs` if this fails, and look at what changed: somebody may rely on it."""
    done = subprocess.run(
        [sys.executable, "-c", "from tools.docs.surface import page; print(page(), end='')"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == surface.TARGET.read_text().splitlines()


def test_there_is_no_public_module_that_is_not_there() -> None:
    assert len(dict(surface.modules())) == len(MODULES)


@pytest.mark.parametrize("name", QueueOptions.__struct_fields__)
def test_an_option_of_a_queue_is_known_wherever_it_must_be(name: str) -> None:
    """The checklist in CONTRIBUTING.md."""
    assert name in QueueKwargs.__annotations__, "editors do not know it: model/queues/options.py: QueueKwargs"
    assert name in SUPPORT, "what becomes of it on RabbitMQ? broker/rabbitmq/support.py: SUPPORT"
    assert any(f"`{name}`" in page.read_text() for page in PAGES), "docs/queues.md has no row for it"


def test_no_option_is_known_that_is_none() -> None:
    names = {field.name for field in msgspec.structs.fields(QueueOptions)}
    assert set(QueueKwargs.__annotations__) == names == set(SUPPORT)


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_known_wherever_it_must_be(name: str) -> None:
    """The checklist in CONTRIBUTING.md."""
    command = name.replace("_", "-")
    assert f"remuda {command}" in (ROOT / "docs/command-line.md").read_text(), "docs/command-line.md has no line for it"
    suite = "".join(path.read_text() for path in (ROOT / "tests/conformance").glob("*.py"))
    method = {"pause": "set_status", "resume": "set_status"}.get(name, name)
    assert re.search(rf"\.{method}\(", suite), "the conformance suite does not try it"


def test_files_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in re.findall(r"`((?:src|tests|docs)/[a-z_/.-]+?)/?`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"\]\(([A-Za-z][\w/.-]+)\)", text):
        assert (ROOT / path).exists() or path == "docs/spec.md", path


def test_files_that_the_architecture_names_are_there() -> None:
    """With their folders where two have the same name, else by name alone."""
    files = [path for folder in ("src/remuda", "src", "tests") for path in (ROOT / folder).rglob("*.*")]
    names = {path.name for path in files} | {path.name for path in ROOT.glob("*.py")}
    for path in re.findall(r"`([a-z_/]+\.(?:py|c))[`:]", (ROOT / "docs/architecture.md").read_text()):
        if "/" in path:
            assert any((ROOT / folder / path).exists() for folder in ("src/remuda", "src", ".", "tests")), path
        assert path.rpartition("/")[2] in names, path


def test_the_image_is_made_of_files_that_are_there_and_not_left_out() -> None:
    """No Docker here: the steps' files are looked for instead, with what hatch needs to build the wheel."""
    copied = [
        name
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    ]
    assert {"pyproject.toml", "hatch_build.py", "src"} <= set(copied)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, f"{name} is not sent to the builder"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(copied)


def test_every_python_that_is_promised_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    promised = {line.rpartition(" ")[2] for line in project["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)}
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    for matrix in re.findall(r"python: (\[.*\])", workflow):
        assert set(json.loads(matrix)) == promised
    built = project["tool"]["cibuildwheel"]["build"]
    assert {f"3.{name.removeprefix('cp3').removesuffix('-*')}" for name in built} == promised


def test_fragments_of_the_changelog_are_named_as_they_should_be(tmp_path: Path) -> None:
    changelog.fragments(ROOT / "changes")
    (tmp_path / "changes").mkdir()
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n<!-- releases -->\n\n## 0.0.9, 2026-01-01\n")
    (tmp_path / "changes/README.md").write_text("how")
    (tmp_path / "changes/a.added.md").write_text("A new\nverb.\n")
    (tmp_path / "changes/b.fixed.md").write_text("A fix.")
    changelog.release(tmp_path, "0.1.0", "2026-02-01")
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert text.index("## 0.1.0, 2026-02-01") < text.index("### Added\n- A new verb.") < text.index("- A fix.")
    assert text.index("- A fix.") < text.index("## 0.0.9")
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]
    (tmp_path / "changes/nonsense.md").write_text("x")
    with pytest.raises(ValueError, match="name it"):
        changelog.fragments(tmp_path / "changes")


def test_the_site_builds_without_a_broken_link_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": ".", "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "spec.html", "reference/python.html", "reference/commands.html"} <= made
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=\"(https?:[^\"]+)", text)
        assert not [url for url in fetched if "127.0.0.1" not in url], page.name
    for source in PAGES[1:]:
        page = tmp_path / source.relative_to(ROOT / "docs").with_suffix(".html")
        outside = re.sub(r"^```.*?^```$", "", source.read_text(), flags=re.MULTILINE | re.DOTALL)
        titles = re.findall(r"^#{1,6} ", outside, re.MULTILINE)
        assert len(re.findall(r"<h[1-6] id=", page.read_text())) >= len(titles), f"{source.name}: sections are lost"
