"""What others do to a shared directory while it is open (S5): nothing hangs, and nothing is lost without a word."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import socket
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.broker.shared.host import host as hosting
from remuda.broker.shared.host.guest_connection import Connection
from remuda.broker.shared.host.guest_session import GuestSession
from remuda.broker.shared.wire import sockets, wire_frames
from remuda.model.errors import StorageError
from remuda.model.operations.commands import Subscribe
from tests.conformance.kit import eventually, quick_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as made:
        yield made / "d"


@pytest.fixture(autouse=True)
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_LOOK", 0.02)


def test_s5_a_socket_that_was_removed_is_made_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_broker(folder, sync="os") as host, open_broker(folder, sync="os") as guest:
        os.unlink(folder / "socket")
        guest.publish(Message("jobs", b"over the connection that there is"))
        with caplog.at_level(logging.WARNING, "remuda.host"), open_broker(folder, sync="os") as another:
            another.publish(Message("jobs", b"over the new one"))
        assert host.queue("jobs").waiting == 2
        assert "the socket in the directory was removed; it was created again" in caplog.text
    assert not (folder / "socket").exists()


def test_s5_a_directory_that_was_removed_confirms_nothing_more(folder: Path) -> None:
    host, guest = open_broker(folder, sync="os"), open_broker(folder, sync="os")
    try:
        guest.publish(Message("jobs", b"gone with its directory"))
        shutil.rmtree(folder)
        eventually(lambda: host.runtime.failure is not None)
        for broker in (host, guest):
            with pytest.raises(StorageError, match="removed"):
                broker.publish(Message("jobs", b"refused"))
    finally:
        guest.close()
        host.close()
    with open_broker(folder, sync="os") as anew:
        assert anew.queues() == []


def test_s5_a_guest_that_does_not_read_holds_little_of_the_hosts_memory(folder: Path) -> None:
    """What waits for it is loaded when it reads on, and is the queue's again when its time is up."""
    with open_broker(folder, sync="os") as broker:
        broker.create_queue("jobs", acknowledge_timeout="60s")
        session, woken = GuestSession(broker.runtime, "guest", lambda one: None), deque[bytes]()
        ready = session.subscribe(Subscribe("jobs", "worker", 7, credit=100))
        assert ready is not None
        command, inbox = ready
        broker.runtime.wait(broker.runtime.submit(command, inbox).ticket)
        broker.publish([Message("jobs", b"x" * 100_000) for _ in range(50)])
        eventually(lambda: len(session._due) == 50)

        def send(data: bytes) -> int:
            woken.append(data)
            return sum(map(len, woken))

        for _ in range(100):
            assert session.outgoing(send)
        assert sum(map(len, woken)) < 1_400_000
        woken.clear()
        assert session.outgoing(send)
        assert woken
        later = broker.runtime.clock() + 61_000_000
        woken.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.runtime, "clock", lambda: later)
            assert not session.outgoing(send)
        assert not woken
        session.end(None)


def test_s5_a_host_that_may_open_no_more_files_waits_for_some(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not try again and again, serves whom it has, and lets others in as soon as it can."""
    monkeypatch.setattr(hosting, "_LOOK", 0.3)
    tried: list[int] = []

    def refuse(listening: socket.socket) -> None:
        tried.append(listening.fileno())
        raise OSError(errno.EMFILE, "Too many open files")

    with open_broker(folder, sync="os") as host, open_broker(folder, sync="os") as guest:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", refuse)
            with sockets.connect(folder) as peer:
                eventually(lambda: tried)
                for _ in range(100):
                    guest.publish(Message("jobs", b"x"))
                assert len(tried) < 50
                patch.undo()
                peer.settimeout(60)
                peer.sendall(wire_frames.frame(wire_frames.HELLO, wire_frames.Hello(wire_frames.VERSION, "late", 1)))
                assert peer.recv(4096)[4] == wire_frames.WELCOME
        assert host.queue("jobs").waiting == 100


def test_s5_setting_a_guests_clock_changes_no_deadline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_broker(folder, sync="os") as host, open_broker(folder, sync="os") as guest:
        own: Any = guest.runtime.guest
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        assert abs(own.clock() - host.runtime.clock()) < 5_000_000


def test_s5_sixty_guests_go_on_when_their_host_leaves(folder: Path) -> None:
    host = open_broker(folder, sync="os")
    host.create_queue("jobs", type="pull")
    guests = [open_broker(folder, sync="os") for _ in range(60)]
    try:
        assert all(guest.runtime.remote for guest in guests)
        host.close()
        for guest in guests:
            guest.publish(Message("jobs", b"x"))
        assert guests[0].queue("jobs").waiting == 60
        assert sum(not guest.runtime.remote for guest in guests) == 1
    finally:
        for guest in guests:
            guest.close()


def test_s5_what_a_guest_takes_in_parts_is_not_copied_for_each_of_them() -> None:
    """A host that copied the rest of a large delivery for every part of it would be there for nobody else meanwhile."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        connection = Connection(ours, Anyone(), local=True)
        large, came, parts = bytes(range(256)) * 32_000, bytearray(), 0
        for data in (large, b"second", b"third"):
            connection.send(data)
        while connection.unsent:
            head = connection.unsent[0]
            assert head is large or len(head) < 1 << 18 or (type(head) is memoryview and head.obj is large)
            connection.flush()
            parts += 1
            with contextlib.suppress(BlockingIOError):
                came += theirs.recv(1 << 20)
        with contextlib.suppress(BlockingIOError):
            while data := theirs.recv(1 << 20):
                came += data
        assert came == large + b"secondthird"
        assert connection.unsent_bytes == 0
        assert parts > 10


class Anyone:
    """Lets everybody in."""

    def admit(self, connection: Connection, hello: wire_frames.Hello) -> None: ...

    def lives(self, token: str) -> bool | None:
        return None

    def marks(self, token: str) -> None:
        return None
