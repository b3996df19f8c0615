"""Batches use the memory of those before them."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
from remuda import Messages, open_broker

with open_broker({place!r}, sync="os") as broker:
    broker.create_queue("q", type="pull")
    batch = Messages(name="q", bodies=[b"." * 1000] * 1000)

    def run(rounds):
        for _ in range(rounds):
            broker.publish(batch)
            broker.pull("q", 1000).ack()

    run(20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run(100)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 100)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_a_batch_of_a_megabyte_touches_no_new_pages(tmp_path: object) -> None:
    """A megabyte is 250 pages; those for what is kept for good, and for sealing, are a few."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS.format(place=f"{tmp_path}/data")], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 60
