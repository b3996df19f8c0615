"""Ctrl-C at any moment: what was confirmed is kept, and nothing half-changed is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.broker.embedded.commit import GroupCommit
from remuda.model.errors import NotFound, StorageError

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from remuda import Message, open_broker
try:
    with open_broker(sys.argv[1], sync="os") as broker:
        broker.create_queue("jobs", type="pull")
        while True:
            broker.publish(Message("jobs.one", b"x"))
            os.write(1, b"published\\n")  # at one go, whatever comes between
            delivery = broker.pull("jobs")
            delivery.nack()
except KeyboardInterrupt:
    os.write(1, b"interrupted\\n")
"""


@pytest.mark.parametrize("after", range(1, 400, 80))
def test_l2_an_interrupt_loses_nothing_that_was_confirmed(tmp_path: Path, after: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(after):
            assert child.stdout.readline() == "published\n"
        os.kill(child.pid, signal.SIGINT)
        rest = child.stdout.read().splitlines()
        assert child.wait(timeout=60) == 0
    assert rest[-1] == "interrupted"
    confirmed = after + rest.count("published")
    with open_broker(tmp_path / "data") as broker:
        assert broker.recovery.damages == ()
        assert broker.queue("jobs").size in (confirmed, confirmed + 1)


def test_a_change_that_was_cut_short_stops_the_broker_until_it_is_opened_again(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "data")
    broker.create_queue("jobs", type="pull")
    broker.publish(Message("jobs.one", b"kept"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.runtime.engine.core.queues["jobs"].flights, "_blocks", None)
        with pytest.raises((TypeError, AttributeError)):
            broker.pull("jobs")
    with pytest.raises(StorageError, match="open the broker again"):
        broker.publish(Message("jobs.one", b"refused"))
    broker.close()
    with open_broker(tmp_path / "data") as again:
        delivery = again.pull("jobs")
        assert delivery is not None
        assert delivery.bodies == [b"kept"]


def test_a_refusal_does_not_stop_the_broker(tmp_path: Path) -> None:
    with open_broker(tmp_path / "data", auto_queue_creation=False) as broker:
        with pytest.raises(NotFound):
            broker.pull("unknown")
        broker.create_queue("jobs", type="pull")
        assert broker.publish(Message("jobs", b"x")).accepted == 1


def test_an_interrupt_between_two_lines_leaves_no_leader_behind() -> None:
    """Whoever was made the leader of a group commit passes that on, wherever it is interrupted."""
    group = GroupCommit(lambda: 10)
    taken = group._take_place

    def interrupted(place: Any) -> None:
        taken(place)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "_take_place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.wait(1)
    group.wait(1)
    assert not group.busy


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_interrupts_neither_hangs_nor_loses(tmp_path: Path, seed: int) -> None:
    command = [sys.executable, "-m", "tests.faults.storm", str(tmp_path / "data"), str(seed)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr[-2000:]
    with open_broker(tmp_path / "data") as broker:
        assert broker.queue("jobs").size >= int(ran.stdout)
