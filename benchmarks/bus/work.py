"""The work of every side: a handler that does nothing but be counted. Processes that import this count together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benchmarks.bus.tally import FileTally, Tally, ThreadTally

TALLY: Final = "BENCHMARK_TALLY"
"""The environment variable with the file to count in, where handlers run in processes."""
BODY: Final = "x" * 200

_path = os.environ.get(TALLY)
tally: Tally = ThreadTally() if _path is None else FileTally(Path(_path))


def handle(body: str) -> None:
    tally.hit()


async def handle_async(body: str) -> None:
    tally.hit()
