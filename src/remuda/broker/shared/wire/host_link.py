"""How a guest connects to its host: the transport, and the handshake."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.wire_frames import Hello, Welcome, WireError

if TYPE_CHECKING:
    from remuda.broker.shared.guest.guest import Guest
    from remuda.log.eventlog import EventLog

_READ: Final = 1 << 16


class Transport(Protocol):
    """How a guest connects to its host."""

    def connect(self) -> socket.socket:
        """A connection; raises `OSError` while there is no host."""

    def hello(self, token: str, epoch: int) -> Hello: ...

    def describe(self, pid: int) -> str:
        """The host, as the subject of a sentence."""

    @property
    def remedy(self) -> str:
        """What to do about a host that does not answer; empty if there is nothing."""

    def begin(self, lease: int, events: int) -> Callable[[int], None] | None:
        """A function that marks an offset as begun without telling the host; None if there is none."""

    def reader(self, guest: Guest) -> EventLog: ...


class Link(NamedTuple):
    """A connection to a host that has admitted us."""

    peer: socket.socket
    buffer: wire_frames.Buffer
    welcome: Welcome
    clock_offset: int
    """How far the host's clock is ahead of `monotonic_micros`."""


def monotonic_micros() -> int:
    """A time that does not jump when this machine's clock is set."""
    return time.monotonic_ns() // 1000


def join(peer: socket.socket, hello: Hello, patience: float) -> Link:
    """Shake hands with the host at the other end; raises `OSError` if it does not answer, and Remuda's errors if it
    refuses us."""
    try:
        with contextlib.suppress(OSError):
            peer.settimeout(patience)
        peer.sendall(wire_frames.frame(wire_frames.HELLO, hello))
        buffer = wire_frames.Buffer()
        asked_at = monotonic_micros()
        welcome = _welcome(peer, buffer)
        if welcome.epoch < hello.epoch:
            raise ConnectionResetError("this is an earlier host, which has been replaced")
        peer.settimeout(None)
    except BaseException:
        peer.close()
        raise
    return Link(peer, buffer, welcome, welcome.now - (asked_at + monotonic_micros()) // 2)


def _welcome(peer: socket.socket, buffer: wire_frames.Buffer) -> Welcome:
    first: tuple[int, bytes] | None = None
    while first is None:
        data = peer.recv(_READ)
        if not data:
            raise ConnectionResetError("the host closed the connection")
        first = next(buffer.feed(data), None)  # later frames stay in the buffer
    kind, payload = first
    if kind == wire_frames.FAILED:
        raise wire_frames.raised(wire_frames.decode(tuple[int, wire_frames.Error], payload)[1])
    if kind == wire_frames.MOVING:
        raise ConnectionResetError("the host is shutting down")
    if kind != wire_frames.WELCOME:
        raise WireError("the host did not say hello; is this another program's port?")
    welcome: Welcome = wire_frames.decode(Welcome, payload)
    if welcome.version != wire_frames.VERSION:
        raise WireError(
            f"the host speaks version {welcome.version} of Remuda's wire, this process {wire_frames.VERSION}; "
            "run the same version of Remuda on both sides"
        )
    return welcome
