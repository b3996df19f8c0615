"""A worker of `test_flow_kills`: takes messages, holds them for a moment, and answers."""

from __future__ import annotations

import random
import sys
import time

from remuda import open_broker
from remuda.model.errors import RemudaError


def main(folder: str, seed: int) -> None:
    chance = random.Random(seed)
    with open_broker(folder, sync="os") as broker:
        while True:
            try:
                delivery = broker.pull("orders", count=3, timeout="1s")
                if delivery is None:
                    continue
                time.sleep(chance.random() * 0.01)
                if chance.random() < 0.2:
                    delivery.retry(after="10ms")
                else:
                    delivery.ack()
            except RemudaError:
                time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
