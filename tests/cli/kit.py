"""Runs the command line: in this process where that will do, in another where signals or locks matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import remuda
from remuda.cli import main

APP = """
import os
import time
from dataclasses import dataclass
from remuda import Bus, Reject

bus = Bus("data")

@dataclass
class Order:
    id: int

@bus.subscribe("order.placed", queue="ship", retry=["1h"], timeout="30s")
def ship(order: Order) -> str:
    if order.id == 2:
        raise ValueError("no stock")
    if order.id == 3:
        raise Reject("no such order")
    if order.id == 4:
        print("holding", flush=True)
        until = time.monotonic() + float(os.environ.get("HOLD", "0"))
        while time.monotonic() < until and not os.path.exists("go"):
            time.sleep(0.01)
    print("shipped", order.id, flush=True)
    return f"shipped {order.id}"
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        return json.loads(self.out)

    @property
    def values(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Remuda = Callable[..., Result]


def runner(capsys: pytest.CaptureFixture[str]) -> Remuda:
    """`remuda` with these arguments, in this process."""

    def run(*arguments: str, code: int = 0) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        found = ended.value.code if isinstance(ended.value.code, int) else 0
        result = Result(found, captured.out, captured.err)
        assert found == code, result
        return result

    return run


def _hear_interrupts() -> None:
    """A test run that was started in the background ignores Ctrl-C, and its children would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`remuda` with these arguments, in another process."""
    return python(folder, "-m", "remuda.cli", *arguments, **environment)


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Python with these arguments, in another process that can import `remuda`."""
    source = str(Path(remuda.__file__).parent.parent)

    def begin(prepare: Callable[[], None] | None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": source, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=prepare,
        )

    try:
        return begin(_hear_interrupts)
    except OSError:  # a test run that has mapped much memory cannot be forked, only left for another program
        return begin(None)


def wait_for(process: subprocess.Popen[str], words: str) -> str:
    """Everything printed up to the line that holds these words; if they never come, the process is killed."""
    assert process.stdout is not None
    lines = ""
    limit = threading.Timer(120, process.kill)
    limit.start()
    try:
        for line in process.stdout:
            lines += line
            if words in line:
                return lines
    finally:
        limit.cancel()
    raise AssertionError(f"{words!r} was never printed: {lines}")
