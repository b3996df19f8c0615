"""U3: `remuda top`, live in the terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections import deque
from pathlib import Path

import pytest

import remuda as package
from remuda import Bus
from remuda.cli.viewing.top import Line, Watch, bars, in_order
from tests.cli.kit import Remuda


def test_once_and_for_programs(remuda: Remuda, data: str) -> None:
    shown = remuda("top", data, "--samples", "1").out
    assert shown.splitlines()[3].split()[:5] == ["ship", "1", "·", "1", "1"]
    first, second = remuda("top", data, "--json", "-n", "2", "--every", "100ms").values
    ship = {queue["queue"]: queue for queue in second["queues"]}["ship"]
    assert (ship["waiting"], ship["delayed"], ship["dead"], ship["status"]) == (1, 1, 1, "running")
    assert (first["queues"][0]["published"], ship["published"]) == (None, 0.0)


def test_rates_are_those_between_two_looks(tmp_path: Path) -> None:
    with Bus(tmp_path) as bus:
        bus.broker.create_queue("q", patterns=["q"])
        bus.publish("q", 1)
        watch = Watch(tmp_path)
        watch.sample()
        bus.publish_many("q", range(50))
        lines = {line.queue: line for line in watch.sample()}
    assert lines["q"].waiting == 51
    assert (lines["q"].published or 0) > 0


@pytest.mark.parametrize(("sort", "first"), [("busy", "fast"), ("waiting", "full"), ("dead", "sick"), ("name", "a")])
def test_orders(sort: str, first: str) -> None:
    def line(name: str, waiting: int = 0, dead: int = 0, rate: float = 0.0) -> Line:
        return Line(name, waiting, 0, 0, dead, rate, rate, 0.0, "", "running")

    lines = [line("full", waiting=9), line("sick", dead=3), line("fast", rate=5.0), line("a")]
    assert in_order(lines, sort)[0].queue == first


def test_bars() -> None:
    assert bars(deque([0.0, 0.0])) == ""
    assert bars(deque([0.0, 0.001, 4.0, 8.0])) == " ▁▄█"


@pytest.mark.parametrize("wrong", [["--sort", "colour"], ["--every", "soon"], ["--every", "-1s"]])
def test_what_is_no_option_is_one_line(remuda: Remuda, data: str, wrong: list[str]) -> None:
    assert remuda("top", data, *wrong, code=1).err.count("\n") == 1


def test_a_terminal_of_80_columns_shows_it_and_q_ends_it(data: str, folder: Path) -> None:
    """Also with a hostile name, and with more queues than fit."""
    with Bus("data") as bus:
        bus.broker.create_queue("[red]x" + "y" * 200)
        for number in range(40):
            bus.broker.create_queue(f"many.{number}")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    source = str(Path(package.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "remuda.cli", "top", "data", "--every", "200ms"],
        env={**os.environ, "PYTHONPATH": source, "TERM": "xterm"}, cwd=folder, stdin=theirs, stdout=theirs,
    )  # fmt: skip
    os.close(theirs)
    try:
        told = _read_until(ours, b"more queues")
        os.write(ours, b"n")
        told += _read_until(ours, b"sorted by name")
        os.write(ours, b"q")
        told += _read_until(ours, b"\x1b[?1049l")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait(timeout=60)
        os.close(ours)
    assert b"[red]xyyy" in told
    assert b"ship" in told


def _read_until(number: int, words: bytes) -> bytes:
    told, deadline = b"", time.monotonic() + 60
    while words not in told:
        assert time.monotonic() < deadline, told
        if select.select([number], [], [], 1)[0]:
            told += os.read(number, 1 << 16)
    return told
