"""Which sockets are ready. With epoll itself on Linux, since a host asks for every message."""

from __future__ import annotations

import select
import selectors
import socket
from collections.abc import Sequence
from typing import Any, Final, Protocol

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
_SELECTABLE: Final = 1024
"""`select`, which counts in microseconds, can wait only for file descriptors below this number."""

Ready = Sequence[tuple[Any, int]]
"""The object each socket was registered with, and whether it can be read; if not, it can be written."""


class Readiness(Protocol):
    def register(self, peer: socket.socket, wanted: int, source: Any) -> None: ...
    def modify(self, peer: socket.socket, wanted: int, source: Any) -> None: ...
    def unregister(self, peer: socket.socket) -> None: ...
    def wait(self, seconds: float | None) -> Ready:
        """What is ready within that time; None waits for ever. Counts in milliseconds."""

    def wait_shortly(self, seconds: float) -> Ready:
        """The same, for less than a millisecond."""

    def close(self) -> None: ...


def readiness() -> Readiness:
    return _Epoll() if hasattr(select, "epoll") else _Selector()


class _Epoll:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._sources: dict[int, Any] = {}

    def register(self, peer: socket.socket, wanted: int, source: Any) -> None:
        self._epoll.register(peer, _mask(wanted))
        self._sources[peer.fileno()] = source

    def modify(self, peer: socket.socket, wanted: int, source: Any) -> None:
        self._epoll.modify(peer, _mask(wanted))

    def unregister(self, peer: socket.socket) -> None:
        del self._sources[peer.fileno()]
        self._epoll.unregister(peer)

    def wait(self, seconds: float | None) -> Ready:
        sources = self._sources
        return [(sources[handle], event & ~select.EPOLLOUT) for handle, event in self._poll(seconds)]

    def wait_shortly(self, seconds: float) -> Ready:
        handle = self._epoll.fileno()
        if handle >= _SELECTABLE:
            return self.wait(seconds)
        select.select((handle,), (), (), seconds)
        return self.wait(0)

    def close(self) -> None:
        self._epoll.close()


class _Selector:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, peer: socket.socket, wanted: int, source: Any) -> None:
        self._selector.register(peer, wanted, source)

    def modify(self, peer: socket.socket, wanted: int, source: Any) -> None:
        self._selector.modify(peer, wanted, source)

    def unregister(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)

    def wait(self, seconds: float | None) -> Ready:
        return [(key.data, mask & READ) for key, mask in self._selector.select(seconds)]

    wait_shortly = wait

    def close(self) -> None:
        self._selector.close()


def _mask(wanted: int) -> int:
    return (select.EPOLLIN if wanted & READ else 0) | (select.EPOLLOUT if wanted & WRITE else 0)
