"""A process that serves a directory: `python -m benchmarks.http.served DIR` prints its address."""

from __future__ import annotations

import sys

from remuda.bus.bus import Bus
from remuda.server.http.app import create_app
from remuda.server.http.serving import Listen, Server


def main(directory: str) -> None:
    with Bus(directory) as bus:
        server = Server(create_app(bus), Listen("127.0.0.1", 0))
        bus.broker.queues()
        print(server.address, flush=True)
        server.run()


if __name__ == "__main__":
    main(sys.argv[1])
