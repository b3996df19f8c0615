"""The RabbitMQ rows still run, for every client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.rabbitmq import RabbitNode

SCRIPT = """
import json, sys
from benchmarks.effort import Effort
from benchmarks.rabbitmq import rows
rows._LEAST = 400
url, pid, row = sys.argv[1:]
result = rows.rabbitmq_rows(rows.Server(url, int(pid)))[row](Effort(rounds=1, seconds=0.0))
print(json.dumps([result.name, result.remuda, result.peers, result.limit, result.settings]))
"""


BARE = {"pika", "pika-select", "aio-pika"}
WHOLE = {"kombu", "faststream", "dramatiq"}
PEERS = {
    "rabbitmq/publish": BARE | WHOLE,
    "rabbitmq/consume": BARE | WHOLE,
    "rabbitmq/end-to-end": {"faststream", "dramatiq"},
    "rabbitmq/client-publish": BARE,
    "rabbitmq/client-consume": BARE,
}


@pytest.mark.parametrize("row", PEERS)
def test_all_clients_are_measured(row: str, rabbit: RabbitNode, clean_url: str) -> None:
    """In a process of its own, since pika leaves sockets behind."""
    pytest.importorskip("pika")
    pytest.importorskip("aio_pika")
    pytest.importorskip("faststream")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, clean_url, str(rabbit.pid), row],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name, rate, peers, limit, settings = json.loads(done.stdout)
    assert name == row
    assert rate > 0
    assert set(peers) == PEERS[row]
    assert all(peers.values())
    assert all(settings["cpu_us_per_message"].values())
    assert set(settings["server_cpu_us_per_message"]) >= PEERS[row]
    assert (limit is None) == (row == "rabbitmq/end-to-end")
    assert settings.get("with_event_log", 1) > 0
