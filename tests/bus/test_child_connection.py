"""B8: the parent's end of the connection to a process, which the process sees as an ordinary `Connection`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from remuda.bus.execution.processes import child_connection
from remuda.bus.execution.processes.child_connection import ChildConnection

SIZES = [0, 1, 4_096, 1 << 16, (1 << 18) - 1, (1 << 18) + 1, 5 << 20]


@pytest.fixture(params=["keeping the interpreter", "as usual"])
def ends(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ChildConnection, Connection]]:
    if request.param == "as usual":
        monkeypatch.setattr(child_connection, "_send", None)
        monkeypatch.setattr(child_connection, "_recv", None)
    own, other = Pipe()
    line = ChildConnection(own)
    yield line, other
    line.close()
    other.close()


def received(line: ChildConnection, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += line.receive()
    return found


@pytest.mark.parametrize("size", SIZES)
def test_what_is_sent_arrives_whole_however_large(ends: tuple[ChildConnection, Connection], size: int) -> None:
    line, other = ends
    data = os.urandom(size)
    sending = threading.Thread(target=line.send, args=(data,))
    sending.start()
    assert other.recv_bytes() == data
    sending.join()


def test_a_line_that_is_full_waits_for_the_other_end(ends: tuple[ChildConnection, Connection]) -> None:
    line, other = ends
    data = [bytes([number]) * 100_000 for number in range(20)]
    sending = threading.Thread(target=lambda: [*map(line.send, data)])
    sending.start()
    assert [other.recv_bytes() for _ in data] == data
    sending.join()


@pytest.mark.parametrize("size", SIZES)
def test_what_comes_is_received_whole_however_large(ends: tuple[ChildConnection, Connection], size: int) -> None:
    line, other = ends
    data = os.urandom(size)
    sending = threading.Thread(target=other.send_bytes, args=(data,))
    sending.start()
    assert received(line, 1) == [data]
    sending.join()


def test_several_that_came_together_are_told_apart(ends: tuple[ChildConnection, Connection]) -> None:
    line, other = ends
    assert line.receive() == [], "nothing has come yet"
    for word in (b"one", b"", b"three"):
        other.send_bytes(word)
    assert received(line, 3) == [b"one", b"", b"three"]


def test_an_end_that_is_gone_is_an_error(ends: tuple[ChildConnection, Connection]) -> None:
    line, other = ends
    other.send_bytes(b"last")
    other.close()
    assert received(line, 1) == [b"last"]
    with pytest.raises((EOFError, OSError)):
        line.receive()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        line.send(b"into the void")
