"""Other processes on a directory, told what to do line by line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import remuda
from remuda import Message, open_broker
from tests.conformance.kit import eventually

SOURCE = str(Path(remuda.__file__).parent.parent)
PROGRAM = """
import json, sys
from remuda import Message, open_broker
broker = open_broker(sys.argv[1], sync="os")
held = []
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


class Other:
    """A process that has the directory open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        assert self._answer() == "ready"

    def does(self, expression: str) -> Any:
        """The value of an expression there: `broker` is its broker, `held` a list."""
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self._answer()

    def freeze(self) -> None:
        """Stop it, and return when none of its threads runs any more."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        eventually(lambda: all((task / "stat").read_text().rpartition(") ")[2][0] == "T" for task in tasks.iterdir()))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the other process ended"
        return json.loads(line)


@contextmanager
def other(path: Path, program: str | None = None) -> Iterator[Other]:
    """Another process that has the directory open, with a program that reads expressions; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program or PROGRAM, str(path)],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Other(process)
    finally:
        process.kill()
        process.wait(60)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def publish_ten(path: str, number: int) -> None:
    """What processes that are started by spawning do: here, because they load the module in which it stands."""
    with open_broker(path, sync="os") as broker:
        broker.publish([Message("jobs", b"%d-%d" % (number, row)) for row in range(10)])
