"""O1, O2, O3: `kill -9` between every two steps, and a database that stops in mid-load."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from remuda import Bus
from remuda.outbox import Inbox, Outbox, Status
from tests.outbox.kit import app, connect, eventually
from tests.servers.postgres import running_postgres

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.faults]


def victim(url: str, broker: Path, role: str, *rest: str, crash: str | None = None) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **({"REMUDA_OUTBOX_CRASH_AT": crash} if crash else {})}
    command = [sys.executable, "-m", "tests.outbox.victim", url, str(broker), role, *rest]
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def prepare(url: str) -> None:
    with Bus("memory://") as bus:
        Outbox(bus, url).create_tables()
    connection = connect(url)
    connection.execute("CREATE TABLE orders (number INTEGER)")
    connection.execute("CREATE TABLE shipped (number INTEGER)")
    connection.commit()
    connection.close()


def numbers(url: str, table: str) -> list[int]:
    connection = connect(url)
    found = [number for (number,) in connection.execute(f"SELECT number FROM {table} ORDER BY number").fetchall()]
    connection.close()
    return found


def test_the_application_is_killed(url: str, tmp_path: Path) -> None:
    """O1: at any step, the order is in the table if and only if its message is sent."""
    prepare(url)
    points = ["began", "inserted", "published", "committed", None]
    processes = []
    for number, point in enumerate(points):
        processes.append(victim(url, tmp_path / "none", "publish", str(number), crash=point))
    for process, point in zip(processes, points, strict=True):
        assert process.wait(100) == (0 if point is None else -9)
    with app(url) as made:
        assert sorted(made.run()) == numbers(url, "orders") == [3, 4]


@pytest.mark.parametrize("point", ["read", "sent", "noted"])
def test_the_relay_is_killed(point: str, url: str, tmp_path: Path) -> None:
    """O2: nothing is lost; only a batch that was sent and not noted is sent again, under the same ids."""
    prepare(url)
    with Bus("memory://") as bus:
        Outbox(bus, url)
        connection = connect(url)
        with bus.transaction(connection):
            ids = bus.publish_many("order", range(25))
        connection.close()
    assert victim(url, tmp_path / "data", "relay", crash=point).wait(100) == -9
    heir = victim(url, tmp_path / "data", "relay")
    with Bus("memory://") as bus:
        outbox = Outbox(bus, url)
        eventually(lambda: outbox.counts()[Status.SUCCEEDED] == 25)
    heir.terminate()
    heir.wait(60)
    with Bus(tmp_path / "data") as bus:
        sent = [message.id for record in bus.broker.spectate().messages() for message in record.messages]
    assert list(dict.fromkeys(sent)) == ids, "each was sent, in order"
    again = [id for id, times in Counter(sent).items() if times > 1]
    assert again == (ids[:10] if point == "sent" else [])


@pytest.mark.parametrize("point", ["handled", "handled and committed"])
def test_a_consumer_is_killed(point: str, url: str, tmp_path: Path) -> None:
    """O3: before the commit its work is undone and done again, after it the redelivery does nothing."""
    prepare(url)
    with Bus(tmp_path / "data") as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order"], acknowledge_timeout="60s")
        bus.publish_many("order", range(5))
    assert victim(url, tmp_path / "data", "handle", crash=point).wait(100) == -9
    assert numbers(url, "shipped") == ([] if point == "handled" else [0])
    assert victim(url, tmp_path / "data", "handle").wait(100) == 0
    assert numbers(url, "shipped") == [0, 1, 2, 3, 4]
    Inbox(url).close()


@pytest.mark.parametrize("crash", [False, True])
def test_postgres_stops_and_starts_in_mid_load(crash: bool) -> None:
    """O2: writers see their errors and go on later; all that they committed is sent once, and nothing else."""
    with running_postgres() as server, app(server.url, lease="2s", batch=20) as made:
        committed: set[int] = set()
        unsure: set[int] = set()
        over = threading.Event()
        made.bus.start()

        def write(first: int) -> None:
            number = first
            while not over.is_set():
                number += 10
                try:
                    with psycopg.connect(server.url, connect_timeout=20) as connection:
                        made.bus.publish("order", number, key=str(first), transaction=connection)
                        unsure.add(number)
                        connection.commit()
                        committed.add(number)
                except psycopg.Error:
                    time.sleep(0.05)

        threads = [threading.Thread(target=write, args=(first,)) for first in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(made.got) > 10)
        server.stop(crash=crash)
        time.sleep(0.3)
        server.start()
        before = len(made.got)
        eventually(lambda: len(made.got) > before + 10)
        over.set()
        for thread in threads:
            thread.join()
        eventually(lambda: committed <= set(made.got))
        eventually(lambda: made.outbox.counts()[Status.SCHEDULED] == 0)
        assert set(made.got) <= committed | unsure
        # What was sent and not yet noted when the server went may come again, under its id; nothing else does.
        assert len(set(made.ids)) == len(set(made.got))
        assert len(made.got) - len(set(made.got)) <= 60, "a few batches"
