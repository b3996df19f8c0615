"""L5, L6: a process without Arrow keeps, handles, looks up and lets go; one that has it seals what is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.log.disk.directory import DirectoryDisk
from remuda.log.repair.check import check

_WITHOUT = "import sys\nsys.modules['pyarrow'] = None\n"
_SEGMENT = 1 << 16


def _run(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", _WITHOUT + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


_HANDLE = """
from remuda import Bus

bus = Bus(sys.argv[1], settings={"message.retry.max": 0})

@bus.subscribe("orders.*", queue="orders")
def take(number: int) -> None:
    if number == 3:
        raise ValueError("three")

with bus:
    ids = bus.publish_many("orders.new", range(10))
    bus.run(until_idle=True, timeout="60s")
    print(bus.status(ids[0]).done, [letter.reason for letter in bus.dead_letters("orders")])
    print(bus.reprocess("orders"))
"""


def test_l1_messages_are_kept_handled_and_looked_up(tmp_path: Path) -> None:
    assert _run(_HANDLE, tmp_path / "data") == "True ['ValueError: three']\n1\n"


_FILL = """
from remuda import Message, open_broker

SIZE = 1 << 16
with open_broker(sys.argv[1], sync="os", success_retention=0, segment_bytes=SIZE, checkpoint_bytes=SIZE) as broker:
    broker.create_queue("orders", type="pull")
    for _ in range(40):
        broker.publish([Message("orders.new", bytes(200))] * 100)
        while delivery := broker.pull("orders", 100):
            delivery.ack()
    broker.publish([Message("orders.new", b"%d" % number) for number in range(50)])
    broker.runtime.upkeep.checkpoint()
    broker.runtime.upkeep.checkpoint()
    broker.runtime.upkeep.seal()
    print(broker.runtime.upkeep.collect().messages)
    assert not broker.health().problems, broker.health()
"""
_OPEN = """
from remuda import open_broker

with open_broker(sys.argv[1], segment_bytes=1 << 16, checkpoint_bytes=1 << 16) as broker:
    assert broker.recovery.clean, broker.recovery.describe()
    print(broker.queue("orders").waiting)
"""


def test_l6_what_outlived_its_retention_goes_and_the_rest_opens_again(tmp_path: Path) -> None:
    gone = int(_run(_FILL, tmp_path / "data"))
    assert gone >= 3000
    assert not list((tmp_path / "data").rglob("*.parquet"))
    assert _run(_OPEN, tmp_path / "data") == "50\n"
    report = check(DirectoryDisk(tmp_path / "data", create=False))
    assert report.clean, report.describe()
    with open_broker(tmp_path / "data", segment_bytes=_SEGMENT, checkpoint_bytes=_SEGMENT) as broker:
        for _ in range(10):
            broker.publish([Message("orders.new", bytes(200))] * 100)
        broker.runtime.upkeep.checkpoint()
        broker.runtime.upkeep.checkpoint()
        broker.runtime.upkeep.seal()
        assert broker.queue("orders").waiting == 1050
    assert list((tmp_path / "data").rglob("*.parquet")), "a process that has Arrow seals"


@pytest.mark.parametrize(
    "line", ["open_broker('memory://').spectate()", "__import__('remuda.index')", "remuda.arrow('data')"]
)
def test_what_needs_it_says_how_to_install_it(line: str) -> None:
    script = f"""
import remuda
from remuda import RemudaError, open_broker
try:
    {line}
except RemudaError as error:
    print(error)
"""
    assert 'pip install "remuda[arrow]"' in _run(script)
