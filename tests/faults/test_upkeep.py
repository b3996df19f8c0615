"""L5, L9, B16: upkeep never dies. One bad file costs a report and that file, and what could not be done is told."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Messages
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.options import BrokerOptions
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.errors import DiskFull
from tests.conformance.kit import eventually
from tests.faults.disks import input_output_error

pytestmark = pytest.mark.faults


class BadFiles(DirectoryDisk):
    """A directory in which some files cannot be read, and nothing written whole, when it is told so."""

    def __init__(self, path: Path) -> None:
        self.unreadable = ""
        self.full = False
        self.refused = 0
        super().__init__(path)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if name == self.unreadable:
            raise input_output_error()
        return super().read(name, start, length)

    def write_atomic(self, name: str, data: bytes | Iterable[bytes]) -> None:
        if self.full:
            self.refused += 1
            raise DiskFull(f"no room on the disk for {name!r}")
        super().write_atomic(name, data)


@pytest.fixture
def disk(tmp_path: Path) -> BadFiles:
    return BadFiles(tmp_path / "log")


def filled(disk: BadFiles) -> EmbeddedBroker:
    options = BrokerOptions.parse(sync="os", segment_bytes=1 << 16, checkpoint_bytes=1 << 30)
    broker = EmbeddedBroker(Runtime(disk, options))
    broker.create_queue("q", type="pull")
    for number in range(40):
        broker.publish(Messages(bodies=[b"%d" % number + b"x" * 1000] * 10, name="q"))
    broker.checkpoint()
    broker.checkpoint()
    return broker


def test_l3_a_segment_that_cannot_be_read_is_told_and_the_others_go_on(disk: BadFiles) -> None:
    with filled(disk) as broker:
        log = broker.runtime.engine.log
        names = [segment.name for segment in log.catalog.files().tail]
        assert len(names) > 4
        disk.unreadable = names[1]
        broker.runtime.upkeep.seal()
        health = broker.health()
        assert names[1] in health.problems["upkeep: sealing"]
        assert (health.live, health.ready) == (True, True)
        # It is tried again, and given up in the end: then all that can be read is sealed.
        for _ in range(5):
            broker.runtime.upkeep.seal()
        assert len(log.catalog.files().tail) == 1
        eventually(lambda: not broker.health().problems)
        assert [name for name in disk.list() if name.startswith("damaged/")] == [names[1].replace("tail", "damaged")]
        missing = sum(count for _, count in log.fetch([(0, 400)]).missing)
        assert 0 < missing < 100


def test_l3_a_segment_that_can_be_read_again_loses_nothing(disk: BadFiles) -> None:
    with filled(disk) as broker:
        log = broker.runtime.engine.log
        disk.unreadable = log.catalog.files().tail[0].name
        broker.runtime.upkeep.seal()
        assert broker.health().problems
        disk.unreadable = ""
        eventually(lambda: not broker.health().problems)
        assert len(log.catalog.files().tail) == 1
        received = broker.pull("q", 400)
        assert received is not None
        assert len(received) == 400


def test_l4_a_checkpoint_that_cannot_be_written_is_told_and_tried_again(disk: BadFiles) -> None:
    broker = EmbeddedBroker(Runtime(disk, BrokerOptions.parse(sync="os", segment_bytes=1 << 16, checkpoint_bytes=4096)))
    broker.create_queue("q", type="pull")
    disk.full = True
    for _ in range(10):
        broker.publish(Messages(bodies=[b"x" * 1000] * 10, name="q"))
    eventually(lambda: "upkeep: checkpoint" in broker.health().problems)
    assert broker.health().ready, "messages are taken all the same"
    disk.full = False
    eventually(lambda: not broker.health().problems)
    assert disk.refused < 20
    broker.close()


def test_b16_the_bus_and_its_metrics_tell_of_it(disk: BadFiles) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from remuda.bus.observing.metrics import Metrics

    registry = prometheus.CollectorRegistry()
    metrics = Metrics(registry)
    bus: Any = Bus(middleware=[metrics])
    bus._lazy.broker = filled(disk)
    metrics.watch(bus)
    assert "problems" not in bus.health()
    bus._lazy.broker.runtime.upkeep.troubles["retention"] = "planted for this test"
    assert bus.health()["problems"] == {"upkeep: retention": "planted for this test"}
    assert registry.get_sample_value("remuda_problem", {"part": "upkeep: retention"}) == 1
    bus.close()
