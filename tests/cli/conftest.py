from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda import Bus
from tests.cli.kit import APP, Remuda, runner


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """The logger of Remuda, as it was before."""
    found = logging.getLogger("remuda")
    kept = (list(found.handlers), found.level, found.propagate)
    yield found
    found.handlers[:], found.propagate = kept[0], kept[2]
    found.setLevel(kept[1])


@pytest.fixture
def remuda(capsys: pytest.CaptureFixture[str]) -> Remuda:
    return runner(capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with an application in it."""
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("app", "broken", "other"):
        sys.modules.pop(name, None)


@pytest.fixture
def data(folder: Path) -> str:
    """A directory with one message done, one that waits for its retry, one invalid, and one without a subscriber."""
    with Bus("data") as bus:

        @bus.subscribe("order.placed", queue="ship", retry=["1h"])
        def ship(order: dict[str, int]) -> None:
            from remuda import Reject

            if order["id"] == 2:
                raise ValueError("no stock")
            if order["id"] == 3:
                raise Reject("no such order")

        for number in (1, 2, 3):
            bus.publish("order.placed", {"id": number}, id=f"order-{number}")
        bus.publish("nobody.listens", "hello", id="lost")
        bus.run(until_idle=True)
        bus.publish("order.placed", {"id": 5}, id="order-5")
    return "data"
