"""A side's process as the measuring sees it: asked one thing at a time, stopped while others have their turn."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.bus.side import Executor, Sync
from benchmarks.bus.stage import Answer, Request
from benchmarks.bus.work import TALLY

LIMIT: Final = 20.0
"""How long, in seconds, one answer may take."""

_ROOT: Final = Path(__file__).parent.parent.parent


class Refused(Exception):
    """The side did not do what it was asked; the text says why."""


class Player:
    def __init__(self, name: str, executor: Executor, sync: Sync, directory: Path) -> None:
        directory.mkdir(parents=True)
        environment = {**os.environ, **({TALLY: str(directory / "tally")} if executor == "processes" else {})}
        with (directory / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.bus.stage", name, executor, sync, str(directory)],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._buffer = b""

    def ready(self) -> str:
        """How it describes itself, once its workers run."""
        return self._answer().description

    def ask(self, request: Request) -> list[float]:
        """The seconds that it took."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Refused("its process ended") from None
        return self._answer().seconds

    @contextmanager
    def turn(self) -> Iterator[None]:
        """It runs in here, and stands still afterwards."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """At once, since some take seconds to stop by themselves. May be said twice."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            with self._process:
                pass

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        handle, deadline = self._process.stdout.fileno(), time.monotonic() + LIMIT
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([handle], [], [], max(deadline - time.monotonic(), 0))
            if not readable:
                raise Refused(f"no answer within {LIMIT:g} s")
            found = os.read(handle, 1 << 16)
            if not found:
                raise Refused("its process ended")
            self._buffer += found
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.refused is not None:
            raise Refused(answer.refused)
        return answer
