"""A signal that comes at the first moment (B16)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import remuda

APP = """
import sys, threading
from remuda import Bus
bus = Bus("data")
for number in range(8):
    bus.subscribe("x", queue=f"q{number}")(lambda body: None)
threading.Timer({delay}, lambda: __import__("os").kill(__import__("os").getpid(), 15)).start()
bus.run(grace="5s")
print("stopped in order")
bus.close()
"""


def test_is_never_lost(tmp_path: Path) -> None:
    """B16: SIGTERM while the workers start."""
    environment = {**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parent.parent)}
    children = []
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "app.py").write_text(APP.replace("{delay}", str(number * 0.01)))
        children.append(
            subprocess.Popen([sys.executable, "app.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        )
    for child in children:
        out, _ = child.communicate(timeout=100)
        # Before `run` has taken over, the signal ends the process as it does any other.
        assert "stopped in order" in out or child.returncode == -signal.SIGTERM


UNNOTICED = """
import asyncio, signal, threading, time
from remuda import Bus
bus = Bus()
bus.subscribe("x", queue="x")(lambda body: None)

def signal_myself() -> None:
    while not bus.running:
        time.sleep(0.01)
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # which wakes no other thread

threading.Thread(target=signal_myself).start()
{run}
print("stopped in order")
bus.close()
"""


@pytest.mark.parametrize("run", ["bus.run()", "asyncio.run(bus.run_async())"])
def test_is_heard_by_a_main_thread_that_it_does_not_wake(run: str) -> None:
    """B16: as when it comes in the moment before that thread sleeps."""
    environment = {**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parent.parent)}
    script = UNNOTICED.replace("{run}", run)
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "stopped in order\n"


def test_the_handler_takes_no_lock() -> None:
    """B16: it may come while this thread holds any of them."""
    from remuda import Bus
    from remuda.bus.execution.stop_signals import StopOnSignal

    bus = Bus()
    stopping = StopOnSignal(bus, "1s", ())
    with stopping:
        runner = bus.start()
        with bus._lazy.guard:
            stopping._receive(15, None)
        deadline = time.monotonic() + 60
        while not runner.asked_to_stop and time.monotonic() < deadline:
            time.sleep(0.01)
        assert runner.asked_to_stop
    bus.close()
