"""The process that gets killed: a broker under load that tells of every step before and after it is taken.

A line is one small `write` to a pipe, so it arrives whole or not at all. Lower case announces, upper case confirms:
`p`/`P` publish, `s`/`S` settle. What was confirmed has therefore happened, and what was never announced has not.
"""

from __future__ import annotations

import faulthandler
import os
import random
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from remuda import Message, Messages, Priority, open_broker
from remuda.broker.delivery import Delivery
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import Refused

PULL, ROBIN, UNIQUE, RANKED = "pulled", "robin", "unique", "ranked"
QUEUES = (PULL, ROBIN, UNIQUE, RANKED)
IDS = 40
SMALL_LOG: dict[str, Any] = {"segment_bytes": 1 << 16, "checkpoint_bytes": 1 << 14, "success_retention": 0, "worker": 7}


class Job(msgspec.Struct, frozen=True):
    """What the process shall do."""

    directory: Path
    seed: int
    round: int
    sync: str
    then: str = "go on"
    """`close` or `tidy`: after some load announce it with `!`, then do just that until killed."""


def run(job: Job, pipe: Connection) -> None:
    """Work until killed."""
    faulthandler.dump_traceback_later(100)
    broker = open_broker(job.directory, sync=job.sync, **SMALL_LOG)
    Load(job, broker, pipe.fileno()).run()


def create_queues(broker: EmbeddedBroker) -> None:
    broker.create_queue(PULL, type="pull")
    broker.create_queue(ROBIN)
    broker.create_queue(UNIQUE, type="pull", unique_ids=True)
    broker.create_queue(RANKED, type="pull")


class Load:
    """Publishers, consumers and upkeep on one broker."""

    def __init__(self, job: Job, broker: EmbeddedBroker, pipe: int) -> None:
        self._job = job
        self._broker = broker
        self._pipe = pipe
        self._stop = threading.Event()
        self._numbers: dict[tuple[str, str], int] = {}

    def run(self) -> None:
        create_queues(self._broker)
        self._tell("!")
        works: list[Callable[[random.Random], None]] = [
            self._publish_singly, self._publish_batches, self._publish_unique, self._publish_ranked,
            self._pull, self._consume, self._consume, self._pull_unique, self._tidy,
        ]  # fmt: skip
        threads = [threading.Thread(target=self._work, args=(work, index)) for index, work in enumerate(works)]
        for thread in threads:
            thread.start()
        if self._job.then != "go on":
            time.sleep(0.15)
            self._stop.set()
            for thread in threads:
                thread.join()
            self._tell("!")
            self._finish()
        for thread in threads:
            thread.join()

    def _finish(self) -> None:
        if self._job.then == "close":
            self._broker.close()
            threading.Event().wait()
        while True:
            self._broker.publish(Messages(bodies=[b"padding"] * 200, name="padding"))
            self._broker.collect()

    def _work(self, work: Callable[[random.Random], None], index: int) -> None:
        rng = random.Random(self._job.seed * 100 + index)
        try:
            while not self._stop.is_set():
                work(rng)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _publish_singly(self, rng: random.Random) -> None:
        for queue in (PULL, ROBIN):
            self._publish(queue, "single", 1)

    def _publish_batches(self, rng: random.Random) -> None:
        self._publish(rng.choice((PULL, ROBIN)), "batch", rng.randint(2, 60))

    def _publish_ranked(self, rng: random.Random) -> None:
        rank = rng.choice((Priority.HIGH, Priority.NORMAL))
        self._publish(RANKED, "high" if rank else "normal", rng.randint(1, 5), rank)
        time.sleep(0.002)

    def _publish(self, queue: str, stream: str, count: int, rank: Priority = Priority.NORMAL) -> None:
        first = self._numbers.get((queue, stream), 0)
        self._numbers[queue, stream] = first + count
        names = [f"{queue}/{stream}/{self._job.round}/{first + step}" for step in range(count)]
        self._tell("p", *names)
        self._broker.publish(Messages(bodies=[name.encode() for name in names], name=queue, priority=rank))
        self._tell("P", *names)

    def _publish_unique(self, rng: random.Random) -> None:
        number = self._numbers[UNIQUE, "id"] = self._numbers.get((UNIQUE, "id"), 0) + 1
        identity = f"id-{rng.randrange(IDS)}"
        name = f"{UNIQUE}/{identity}/{self._job.round}/{number}"
        self._tell("p", name)
        try:
            self._broker.publish(Message(UNIQUE, name.encode(), id=identity))
        except Refused:
            time.sleep(0.001)
        else:
            self._tell("P", name)

    def _pull(self, rng: random.Random) -> None:
        queue = rng.choice((PULL, PULL, RANKED))
        delivery = self._broker.pull(queue, rng.randint(1, 20), timeout="20ms", newest=rng.random() < 0.2)
        if delivery is not None:
            self._answer(delivery, rng)

    def _pull_unique(self, rng: random.Random) -> None:
        delivery = self._broker.pull(UNIQUE, 3, timeout="20ms")
        if delivery is not None:
            self._answer(delivery, rng)

    def _consume(self, rng: random.Random) -> None:
        with self._broker.subscribe(ROBIN, batch=rng.randint(1, 15)) as subscription:
            for _ in range(20):
                delivery = subscription.receive(timeout="20ms")
                if delivery is not None:
                    self._answer(delivery, rng)

    def _answer(self, delivery: Delivery, rng: random.Random) -> None:
        names = [body.decode() for body in delivery.bodies]
        chance = rng.random()
        if chance < 0.15:
            delivery.nack()
            return
        rows = list(range(len(names))) if chance < 0.7 else sorted(rng.sample(range(len(names)), len(names) // 2))
        settled = [names[row] for row in rows]
        self._tell("s", *settled)
        count = delivery.dead(rows, reason="given up on purpose") if chance < 0.2 else delivery.ack(rows)
        if count == len(rows):  # on a machine that stood still the time for an answer may be over
            self._tell("S", *settled)
        else:
            self._tell("!", str(count))
        if len(rows) < len(names):
            delivery.nack()

    def _tidy(self, rng: random.Random) -> None:
        time.sleep(rng.random() * 0.05)
        rng.choice((self._broker.checkpoint, self._broker.collect, self._broker.runtime.upkeep.seal))()

    def _tell(self, kind: str, *names: str) -> None:
        line = " ".join((kind, *names)).encode() + b"\n"
        assert len(line) <= 4096, "longer lines could be torn"
        os.write(self._pipe, line)
