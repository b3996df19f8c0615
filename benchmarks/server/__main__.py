"""`python -m benchmarks.server [--quick] [PATTERN]`: measure the AMQP server beside RabbitMQ and print each row."""

from __future__ import annotations

import sys

from benchmarks.effort import Effort
from benchmarks.server.rows import SERVER_ROWS


def main(arguments: list[str]) -> None:
    effort = Effort(rounds=1, seconds=0.2) if "--quick" in arguments else Effort(rounds=3, seconds=1.0)
    patterns = [one for one in arguments if not one.startswith("--")]
    for name, measure in SERVER_ROWS.items():
        if not patterns or any(pattern in name for pattern in patterns):
            result = measure(effort)
            peers = "  ".join(f"{peer} {rate:,.0f}" for peer, rate in result.peers.items() if rate is not None)
            print(f"{name:30} {result.remuda:>12,.2f} {result.unit}  {peers}  {result.settings}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
