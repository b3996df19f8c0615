"""L10, S5: a process that cannot serve lets the directory go, says so, and another takes over."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import remuda
from remuda import Message, open_broker
from remuda.model.errors import StorageError
from tests.broker.shared.kit import other
from tests.conformance.kit import eventually

pytestmark = [pytest.mark.faults, pytest.mark.source]

SOURCE = str(Path(remuda.__file__).parent.parent)
FAILING = """
import sys, threading, time
from remuda.core.queues.queue import Queue
from remuda.model.records import Event
admit = Queue.admit
def struck(self, *args):
    if self.name == "mined":
        raise AssertionError("a planted error")
    return admit(self, *args)
Queue.admit = struck
"""
RUN = (
    FAILING
    + """
from remuda import Bus, Message
bus = Bus(sys.argv[1], sync="os")
@bus.subscribe("jobs")
def handle(body): pass
def later():
    time.sleep(0.5)
    for _ in range(2):
        try:
            bus.broker.publish(Message("mined", b"x"))
        except Exception as error:
            print("caller:", error, flush=True)
        while bus.broker.runtime.restoration.error is not None:
            time.sleep(0.01)
threading.Thread(target=later, daemon=True).start()
bus.run()
"""
)
SERVE = (
    FAILING
    + """
from remuda.cli import main
from remuda.server import serving
run = serving.run
def running(broker, *args, **options):
    def later():
        time.sleep(0.5)
        for _ in range(2):
            try:
                from remuda import Message
                broker.publish(Message("mined", b"x"))
            except Exception as error:
                print("caller:", error, flush=True)
            while broker.runtime.restoration.error is not None:
                time.sleep(0.01)
    threading.Thread(target=later, daemon=True).start()
    return run(broker, *args, **options)
serving.run = running
sys.argv = ["remuda", "serve", "--data", sys.argv[1], "--listen", "127.0.0.1:0", "--wire", "none"]
main()
"""
)
HOST = (
    FAILING
    + """
import json
from remuda import Message, open_broker
broker = open_broker(sys.argv[1], sync="os")
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""
)


def test_s5_l10_a_host_that_fails_twice_lets_a_guest_take_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.broker.shared.kit.PROGRAM", HOST)
    place = tmp_path / "d"
    with other(place) as host, open_broker(place, sync="os") as broker:
        broker.create_queue("jobs", type="pull", acknowledge_timeout="1h")
        broker.publish([Message("jobs", b"%d" % number) for number in range(3)])
        delivery = broker.pull("jobs")
        assert delivery is not None
        for _ in range(2):
            with pytest.raises(Exception, match="a planted error"):
                broker.publish(Message("mined", b"costs its caller an error"))
        begun = time.monotonic()
        broker.publish(Message("jobs", b"3"))
        eventually(lambda: bool(broker.runtime.hosts))
        assert time.monotonic() - begun < 10  # 2 s on a machine that does nothing else
        assert host.process.poll() is None
        with pytest.raises(AssertionError, match="the other process ended"):
            host.does("broker.publish(Message('jobs', b'refused')) and None")
        assert delivery.ack() == 1
        taken = broker.pull("jobs", 10)
        assert taken is not None
        assert taken.bodies == [b"1", b"2", b"3"]
        # Here there is no mistake, and nothing that was refused has come in.
        broker.publish(Message("mined", b"fine"))
        assert broker.queue("mined").size == 1


@pytest.mark.parametrize("program", [RUN, SERVE], ids=["run", "serve"])
def test_l10_the_process_ends_with_a_code_and_one_line(tmp_path: Path, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "d")],
        env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "the broker stopped: a planted error" in done.stderr
    assert done.stdout.count("caller: ") == 2
    with open_broker(tmp_path / "d", shared=False) as broker:
        assert broker.recovery.clean


def test_l10_health_tells_of_an_error_and_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from remuda.core.queues.queue import Queue

    admit = Queue.admit

    def struck(self: Queue, *args: object) -> None:
        if self.name == "mined":
            raise AssertionError("a planted error")
        admit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Queue, "admit", struck)
    with open_broker(tmp_path / "d", shared=False) as broker:
        with pytest.raises(AssertionError, match="a planted error"):
            broker.publish(Message("mined", b""))
        eventually(lambda: "restored once" in broker.health().problems.get("errors", ""))
        assert broker.health().ready
        with pytest.raises(AssertionError, match="a planted error"):
            broker.publish(Message("mined", b""))
        eventually(lambda: not broker.health().live)
        assert "a planted error" in broker.health().problems["broker"]
        with pytest.raises(StorageError, match="a planted error"):
            broker.publish(Message("jobs", b""))
