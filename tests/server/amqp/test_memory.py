"""What a server keeps in memory is bounded by what waits, not by what has passed through it (S4)."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tracemalloc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.server.amqp.kit import Client, fresh
from tests.servers.amqpd import RunningServer

_MESSAGES = 1500


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(str(tmp_path / "data")) as running:
        yield running


def _task() -> Any:
    """Properties as Celery sends them: no two are alike."""
    id = str(uuid.uuid4())
    headers = {f"header-{number}": f"{id}-{number}" for number in range(15)}
    return pika.BasicProperties(correlation_id=id, message_id=id, headers=headers)


def test_s4_headers_of_messages_that_are_gone_are_not_kept(own_server: RunningServer) -> None:
    queue = fresh()

    def pass_through(count: int) -> None:
        for _ in range(4):
            with Client(own_server.url) as client:
                client.channel.queue_declare(queue, durable=True)
                channel = client.open(confirms=False)
                for _ in range(count):
                    channel.basic_publish("", queue, b"x" * 200, _task())
                channel.queue_declare(queue, passive=True)
                for _ in range(count):
                    assert channel.basic_get(queue, auto_ack=True)[0] is not None

    pass_through(20)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        pass_through(_MESSAGES)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # 4 × 1,500 of about 3.5 KB; the newest stay for consumers close behind, 8 MiB each as written and as read.
    assert kept < 15 << 20, f"{kept / (1 << 20):.1f} MiB are kept"


def _resident(pid: int) -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_s4_a_connection_takes_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "remuda", "serve", "--data", str(tmp_path / "data")]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--wire", "none"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"amqp://\S+", process.stdout.readline())
        assert found is not None
        parameters = pika.URLParameters(f"{found[0]}/?heartbeat=600")

        def connect(count: int) -> list[Any]:
            clients = [pika.BlockingConnection(parameters) for _ in range(count)]
            for number, client in enumerate(clients):
                channel = client.channel()
                channel.confirm_delivery()
                channel.queue_declare("q")
                channel.basic_publish("", "q", b"x" * 100, _task())
                channel.basic_consume("q", lambda *_: None, consumer_tag=f"tag-{number}")
            return clients

        some = connect(20)
        before = _resident(process.pid)
        more = connect(300)
        each = (_resident(process.pid) - before) / 300
        for client in [*some, *more]:
            client.close()
        assert each < 60_000, f"{each:.0f} bytes for each connection"
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
