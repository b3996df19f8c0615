"""Chromium for tests, driven by Playwright. `tools/setup.sh` installs it; without it tests say so and skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from playwright.sync_api import Browser, Dialog, Page, Route, expect, sync_playwright

_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
AXE = "axe-core@4.14.0"
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module: while it runs, its thread has an event loop, and other tests could not begin one."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        missing("Chromium is not installed; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        yield launched
        launched.close()


class Watched:
    """A page that notes what must not happen: scripts that fail, requests to elsewhere, dialogs nobody expects."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.troubles: list[str] = []
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("console", lambda said: self.troubles.append(said.text) if said.type == "error" else None)
        page.route("**/*", self._route)

    def _route(self, route: Route) -> None:
        if route.request.url.startswith("http://127.0.0.1:"):
            route.continue_()
        else:
            self.troubles.append(f"a request to {route.request.url}")
            route.abort()


def accepting(asked: list[str]) -> Callable[[Dialog], None]:
    """Say yes to the browser's dialogs, and write down what they ask."""

    def accept(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    return accept


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """A fresh page; the test fails if anything went wrong in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(60_000)
    made = Watched(context.new_page())
    yield made
    context.close()
    assert made.troubles == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which checks pages for accessibility."""
    npm = shutil.which("npm")
    if npm is None:
        missing("npm is not installed; it brings axe-core")
    folder: Path = tmp_path_factory.mktemp("axe")
    command = [npm, "pack", "--silent", "--ignore-scripts", AXE]
    for _ in range(3):  # a network may fail once
        packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        archives = list(folder.glob("*.tgz"))
        if archives:
            break
    else:
        missing(f"axe-core cannot be had from npm: {packed.stderr.strip()[:200]}")
    with tarfile.open(archives[0]) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def missing(what: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
