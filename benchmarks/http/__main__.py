"""`python -m benchmarks.http [MESSAGES]`: these rows alone, printed."""

from __future__ import annotations

import sys

from rich.console import Console

from benchmarks.effort import Effort
from benchmarks.http.rows import HTTP_ROWS


def main() -> None:
    effort = Effort(rounds=1, messages=int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
    console = Console(width=140)
    for name, measure in HTTP_ROWS.items():
        result = measure(effort)
        console.print(f"{name:22} {result.remuda:>12,.1f} {result.unit:12} {result.settings}")


if __name__ == "__main__":
    main()
