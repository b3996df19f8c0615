"""Many threads at once: everything that was published comes out, once, however it is read back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from remuda import Message, open_broker

PUBLISHERS = 8
EACH = 150


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("queue_size", [0, 500])
def test_l2_eight_publishers_and_a_consumer_close_behind(tmp_path: Path, sync: str, queue_size: int) -> None:
    """With `queue_size=0` every message is read back from the log while others are being written beside it (Q21)."""
    with open_broker(tmp_path / "data", sync=sync) as broker:
        broker.create_queue("jobs", type="pull", queue_size=queue_size)

        def publish(publisher: int) -> None:
            for number in range(EACH):
                broker.publish(Message("jobs.one", f"{publisher}:{number:04d}".encode() + b"." * 300))

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(PUBLISHERS)]
        for thread in threads:
            thread.start()
        received: list[bytes] = []
        while len(received) < PUBLISHERS * EACH:
            delivery = broker.pull("jobs", 7, timeout="60s")
            assert delivery is not None, f"only {len(received)} came out"
            received += [body.rstrip(b".") for body in delivery.bodies]
            delivery.ack()
        for thread in threads:
            thread.join()
        assert broker.queue("jobs").dead == 0
    assert len(set(received)) == PUBLISHERS * EACH
    for publisher in range(PUBLISHERS):
        own = [body for body in received if body.startswith(b"%d:" % publisher)]
        assert own == sorted(own), "each publisher's messages come out in its order (Q15)"
