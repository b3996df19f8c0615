"""A process may be forked at any moment, and its forks again (S5)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from remuda import Message, open_broker
from remuda.broker.shared.directory.host_lock import HostDisk, is_held
from remuda.broker.shared.directory.unforked import unforked
from remuda.broker.threads import EmbeddedBroker
from remuda.server.wire import serve_wire
from tests.broker.shared.kit import other
from tests.conformance.kit import eventually


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """A fork that does this and ends; killed if it has not by then."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def ends_well(child: int) -> bool:
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert ended is None or ended.si_status == 0
    return ended is not None


def publish_in_three_generations(broker: EmbeddedBroker) -> None:
    def publish(body: bytes) -> None:
        broker.publish(Message("jobs", body))

    def child() -> None:
        publish(b"child")
        with forked(lambda: publish(b"grandchild")) as grandchild:
            for number in range(20):
                publish(b"child %d" % number)
            eventually(lambda: ends_well(grandchild))

    publish(b"parent")
    with forked(child) as pid:
        for number in range(20):
            publish(b"parent %d" % number)
        eventually(lambda: ends_well(pid))


def test_s5_a_fork_of_a_fork_has_a_connection_of_its_own(tmp_path: Path) -> None:
    with other(tmp_path / "d") as host, open_broker(tmp_path / "d", sync="os") as guest:
        publish_in_three_generations(guest)
        assert host.does("broker.queue('jobs').waiting") == 43


def test_s6_a_fork_of_a_fork_has_a_connection_of_its_own_over_tcp(tmp_path: Path) -> None:
    with (
        open_broker(tmp_path / "d", sync="os") as host,
        serve_wire(host, ("127.0.0.1", 0)) as server,
        open_broker(server.url) as client,
    ):
        publish_in_three_generations(client)
        assert host.queue("jobs").waiting == 43


def test_s5_a_fork_keeps_neither_the_lock_nor_the_socket_of_who_is_about_to_host(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    disk = HostDisk(tmp_path / "d", group=False)
    disk.lock()
    with forked(signal.pause):
        assert is_held(tmp_path / "d")
        disk.unlock()
        eventually(lambda: not is_held(tmp_path / "d"))


def test_s5_nobody_forks_while_a_lock_is_being_taken() -> None:
    taken, done = threading.Event(), threading.Event()
    forks: list[int] = []

    def fork() -> None:
        taken.wait(60)
        with forked(lambda: None) as child:
            forks.append(child)
            eventually(lambda: ends_well(child))
        done.set()

    thread = threading.Thread(target=fork, daemon=True)
    thread.start()
    with unforked:
        taken.set()
        assert not done.wait(0.05)
        assert forks == []
    assert done.wait(60)
    with unforked:  # it is free again, and may be taken twice
        assert unforked.acquire(timeout=1)
        unforked.release()
