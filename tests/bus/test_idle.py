"""B21: an idle bus costs nothing: workers are woken, none polls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import remuda
from remuda import open_broker

SOURCE = str(Path(remuda.__file__).parent.parent)
PROGRAM = """
import json, sys, threading, time
calls = {}
def count(frame, event, arg):
    if event == "call" and counting:
        calls[threading.get_ident()] = calls.get(threading.get_ident(), 0) + 1
counting = False
threading.setprofile(count)
from remuda import Bus
url, number, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
bus = Bus(url, sync="os")
handled = threading.Event()
def handler(at):
    if kind == "coroutine":
        async def handle(body):
            handled.set()
    else:
        def handle(body):
            handled.set()
    handle.__name__ = handle.__qualname__ = f"handle{at}"
    bus.subscribe(f"topic{at}", queue=f"queue{at}")(handle)
for at in range(number):
    handler(at)
bus.start()
time.sleep(4)  # until the watchdog sleeps
counting = True
time.sleep(3)
counting = False
workers = [t.ident for t in threading.enumerate() if t.name.startswith(("remuda-queue", "remuda-watchdog"))]
bus.publish("topic0", "x")
woken = handled.wait(30)
bus.stop()
print(json.dumps({
    "workers": sum(calls.get(one, 0) for one in workers), "all": sum(calls.values()), "woken": woken,
    "threads": len(workers),
}), flush=True)
bus.close()
"""


def idle(url: str, number: int, kind: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, url, str(number), kind],
        env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ["function", "coroutine"])
@pytest.mark.parametrize("place", ["embedded", "guest"])
def test_b21_idle_workers_make_no_calls(tmp_path: Path, place: str, kind: str) -> None:
    url = str(tmp_path / "d")
    other = str(tmp_path / "e")
    with ExitStack() as hosts, ThreadPoolExecutor(2) as both:
        for one in (url, other) if place == "guest" else ():
            hosts.enter_context(open_broker(one, sync="os"))
        few, many = both.map(idle, (url, other), (3, 100), (kind, kind))
    for found in (few, many):
        assert found["workers"] == 0
        assert found["woken"]
    assert many["all"] <= few["all"] + 6000  # in three seconds, most of them to tell the broker of a hundred queues
