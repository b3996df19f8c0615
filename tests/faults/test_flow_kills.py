"""Rules of flow hold while the processes of a directory are killed, its host among them (F1, F2)."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remuda import Message, open_broker
from tests.conformance.kit import SOON, quick_folder
from tests.core.flow_checks import Checked

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]
KILLS = 8
MESSAGES = 150
RULES = {"ordered": True, "concurrency": 4}


@pytest.mark.timeout(300)
def test_f1_f2_one_of_a_key_at_a_time_in_order_whoever_is_killed() -> None:
    chance = random.Random(5)
    with quick_folder() as folder:
        place = str(folder / "data")
        with open_broker(place, sync="os") as broker:
            broker.create_queue("orders", type="pull", acknowledge_timeout="2s", **RULES)  # type: ignore[arg-type]
            broker.publish([Message("orders", b"%d" % one, key=chance.choice("abcdefgh")) for one in range(MESSAGES)])
        workers = [_worker(place, seed) for seed in range(4)]
        try:
            for kill in range(KILLS):
                time.sleep(0.3 + 0.4 * chance.random())
                at = kill % len(workers)  # the oldest, which is the host more often than not
                workers[at].kill()
                workers[at].wait()
                workers[at] = _worker(place, 100 + kill)
            with open_broker(place, sync="os") as broker:
                until = time.monotonic() + SOON
                while broker.queue("orders").size and time.monotonic() < until:
                    time.sleep(0.05)
                info = broker.queue("orders")
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        assert (info.size, info.dead) == (0, 0)
        check = Checked(RULES)
        with open_broker(place, sync="os") as broker:
            log = broker.spectate()
            check.read(log.messages())
            check.read(log.events())
        assert len(check.key_of) == MESSAGES
        assert len(check.started) > MESSAGES
        assert not check.live


def _worker(place: str, seed: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.faults.flow_worker", place, str(seed)], cwd=ROOT)
