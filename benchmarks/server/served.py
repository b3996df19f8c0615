"""`python -m benchmarks.server.served DIR SYNC`: the server that is measured; says at its end how often it synced."""

from __future__ import annotations

import sys

import pyarrow

import remuda.log.seal  # noqa: F401
from benchmarks.syncs import counted_syncs
from remuda.broker.opening import open_broker
from remuda.server.serving import AmqpListener, run


def main(directory: str, sync: str) -> None:
    pyarrow.array([b""])  # what a server loads once, when its first segment is full, is loaded before it is measured
    with open_broker(directory, sync=sync) as broker, counted_syncs() as syncs:
        run(broker, [AmqpListener("127.0.0.1", 0)], lambda addresses: print(addresses[0], flush=True))
    print(syncs.total, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
