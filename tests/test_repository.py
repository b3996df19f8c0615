"""Promises the repository itself keeps."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ADDRESS_FREE = ("*.lock", "*.toml", "*.json", "Makefile", "*/Makefile", "tools/*")
FOREIGN_ADDRESS = re.compile(r"https?://(?!(?:localhost|127\.0\.0\.1)(?![\w.-]))(?!www\.w3\.org/2000/svg\b)\S*")
"""An address that is asked for something; the name of SVG only looks like one."""


def repository_files() -> Iterator[str]:
    """Paths git tracks or would track; outside a checkout, all but hidden and installed ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shutil.which("git"):
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listing.returncode == 0:
            yield from filter(None, listing.stdout.split("\0"))
            return
    for path in ROOT.rglob("*"):
        relative = path.relative_to(ROOT)
        if not any(part.startswith(".") or part == "node_modules" for part in relative.parts):
            yield relative.as_posix()


def test_configuration_names_no_outside_address() -> None:
    checked = [
        path for path in repository_files() if any(fnmatch(path, p) for p in ADDRESS_FREE) and (ROOT / path).is_file()
    ]
    assert {"Makefile", "pyproject.toml", "requirements.lock", "tools/setup.sh"} <= set(checked)
    named = {path: FOREIGN_ADDRESS.findall((ROOT / path).read_text("utf-8", "replace")) for path in checked}
    assert {path: addresses for path, addresses in named.items() if addresses} == {}


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("http://localhost:8000/x", False),
        ("http://127.0.0.1/", False),
        ("https://example.org", True),
        ("http://localhost.example.org", True),
    ],
)
def test_only_this_machine_is_not_an_outside_address(text: str, foreign: bool) -> None:
    assert bool(FOREIGN_ADDRESS.search(text)) is foreign


@pytest.mark.parametrize("lock", ["uv.lock", "pylock.toml"])
def test_locks_that_hold_addresses_stay_out(lock: str) -> None:
    assert lock in (ROOT / ".gitignore").read_text().splitlines()
    assert lock not in repository_files()


def test_ci_runs_make_test() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text().splitlines()


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("ci", [True, False])
def test_a_server_that_cannot_be_installed_fails_in_ci_only(user: int, ci: bool, tmp_path: Path) -> None:
    """Elsewhere its tests are skipped, and the setup says so."""
    for name, does in {"id": f"echo {user}", "apt-get": "exit 1", "ls": "exit 1", "mkdir": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "postgresql-common").mkdir()
    functions = (ROOT / "tools/setup.sh").read_text().partition("\nmake_venv\n")[0]
    functions = functions.replace('cd "$(dirname "$0")/.."', "").replace("/etc/", f"{tmp_path}/")
    done = subprocess.run(
        ["/bin/bash", "-c", f"{functions}\ninstall_programs"],
        env={"PATH": str(tmp_path), "CI": "true" if ci else ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (1 if ci else 0), done.stderr
    for name in ["rabbitmq"] if ci else ["rabbitmq", "browser", "postgres"]:
        assert f"SKIPPED: there is no {name} here" in done.stderr
