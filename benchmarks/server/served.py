"""`python -m benchmarks.server.served DIR SYNC [warm]`: the server that is measured; tells its syncs at the end."""

from __future__ import annotations

import sys

from benchmarks.syncs import counted_syncs
from remuda.broker.opening import open_broker
from remuda.server.serving import AmqpListener, run


def main(directory: str, sync: str, warm: str = "") -> None:
    if warm:
        _load_arrow()
    with open_broker(directory, sync=sync) as broker, counted_syncs() as syncs:
        run(broker, [AmqpListener("127.0.0.1", 0)], lambda addresses: print(addresses[0], flush=True))
    print(syncs.total, flush=True)


def _load_arrow() -> None:
    """A server loads it once in its life, when its first segment is full."""
    import pyarrow

    import remuda.log.sealed.seal  # noqa: F401

    pyarrow.array([b""])


if __name__ == "__main__":
    main(*sys.argv[1:])
