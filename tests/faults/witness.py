"""What must be true of a directory after its process was killed, from the lines that the process wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.broker.delivery import Delivery
from remuda.broker.threads import EmbeddedBroker
from remuda.log.repair.recovery import RecoveryReport
from remuda.model.errors import Duplicate
from tests.faults.victim import PULL, QUEUES, RANKED, ROBIN, SMALL_LOG, UNIQUE


class Witness:
    """Gathers what was announced and confirmed over all rounds in one directory."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {kind: set() for kind in "pPsS"}

    def hear(self, lines: bytes) -> None:
        whole = lines[: lines.rfind(b"\n") + 1]
        for line in whole.decode().splitlines():
            kind, *names = line.split(" ")
            if kind != "!":
                self.names[kind].update(names)

    def check(self, directory: Path, copy: Path) -> int:
        """Look at a copy: the next round shall meet the directory as the kill left it. Gives how many waited."""
        shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("socket"))
        with open_broker(copy, sync="os", **SMALL_LOG) as broker:
            check_report(broker.recovery)
            found = Found(broker)
            self._check_names(found)
        with open_broker(copy, sync="os", **SMALL_LOG) as broker:
            assert [info.size for info in broker.queues() if info.name in QUEUES] == [0] * len(QUEUES)
        shutil.rmtree(copy)
        return len(found.names)

    def _check_names(self, found: Found) -> None:
        announced, accepted, maybe_settled, settled = (self.names[kind] for kind in "pPsS")
        there = set(found.names)
        assert len(there) == len(found.names), "a message was delivered twice after one restart"
        assert not accepted - maybe_settled - there, "accepted messages were lost"
        assert not settled & there, "settled messages were delivered again"
        assert not there - announced, "messages appeared that nobody published"


class Found:
    """Everything that waits in a recovered broker, taken out through the front door."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.names: list[str] = []
        self._identities(broker)
        for queue in (PULL, UNIQUE, RANKED):
            deliveries = []
            while (delivery := broker.pull(queue, 50)) is not None:
                delivery.ack()
                deliveries.append(delivery)
            self._take(queue, deliveries)
        deliveries = []
        with broker.subscribe(ROBIN, batch=50) as subscription:
            while broker.queue(ROBIN).size and (delivery := subscription.receive(timeout=5)) is not None:
                delivery.ack()
                deliveries.append(delivery)
        self._take(ROBIN, deliveries)

    def _take(self, queue: str, deliveries: list[Delivery]) -> None:
        fresh: list[tuple[int, int]] = []
        for delivery in deliveries:
            self.names += [body.decode() for body in delivery.bodies]
            fresh += [
                (-message.priority, offset)
                for message, offset, attempt in zip(delivery, delivery.offsets, delivery.attempts, strict=True)
                if attempt == 1
            ]
        assert fresh == sorted(fresh), f"{queue}: messages never delivered before came out of order"

    def _identities(self, broker: EmbeddedBroker) -> None:
        """Ids in a unique queue are still taken after the restart."""
        core = broker.runtime.engine.core
        for identity in list(core.queues[UNIQUE].offset_of)[:3]:
            with pytest.raises(Duplicate):
                broker.publish(Message(UNIQUE, b"again", id=identity))


def check_report(report: RecoveryReport) -> None:
    """A kill may tear the end of the log, and nothing else."""
    assert not report.damages, report.describe()
    assert not report.damaged_checkpoints, report.describe()
    assert not report.state_lost, report.describe()
