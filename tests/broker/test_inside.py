"""A signal's handler and a finalizer interrupt a call anywhere: what they ask of the broker is done or refused, and
nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from remuda import open_broker

_PATIENCE = 60
_START = """
import gc, os, signal, sys, threading, time
from remuda import Message, RemudaError, open_broker

broker = open_broker(sys.argv[1])
broker.create_queue("q", type="pull")
asked, done, refused, until = [], [], [], time.monotonic() + 1.5

def publish():
    asked.append(1)
    try:
        broker.publish(Message("q.inner", b"1"))
        done.append(1)
    except RemudaError as error:
        assert "from inside" in str(error), error
        refused.append(1)
"""
_BY_SIGNAL = """
signal.signal(signal.SIGUSR1, lambda *_: publish())

def strike():
    while time.monotonic() < until:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)

threading.Thread(target=strike, daemon=True).start()
outer = 0
while time.monotonic() < until:
    broker.publish(Message("q.outer", b"1"))
    outer += 1
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
"""
_BY_FINALIZER = """
class Last:
    def __init__(self):
        self.me = self

    def __del__(self):
        publish()

gc.set_threshold(30, 2, 2)
outer = 0
while time.monotonic() < until:
    Last()
    broker.publish([Message("q.outer", b"1"), Message("q.outer", b"2")])
    outer += 2
gc.disable()
"""
_END = """
while len(asked) != len(done) + len(refused):
    time.sleep(0.01)  # a finalizer may still be at it in another thread
print(len(done), len(refused), outer, broker.queue("q").size)
broker.close()
"""


@pytest.mark.parametrize("story", [_BY_SIGNAL, _BY_FINALIZER], ids=["signal", "finalizer"])
@pytest.mark.parametrize("pure", ["0", "1"], ids=["c", "python"])
@pytest.mark.parametrize("guest", [False, True], ids=["host", "guest"])
def test_what_interrupts_a_call_is_done_or_refused(
    story: str, pure: str, guest: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, L2, S5: also while the thread that is interrupted writes for the others, or reads for them."""
    monkeypatch.setenv("REMUDA_PURE", pure)
    with open_broker(tmp_path / "data") if guest else nullcontext():
        run = subprocess.run(
            [sys.executable, "-c", _START + story + _END, str(tmp_path / "data")],
            capture_output=True, text=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    done, refused, outer, kept = map(int, run.stdout.split())
    assert refused, "nothing was interrupted"
    assert kept == done + outer
