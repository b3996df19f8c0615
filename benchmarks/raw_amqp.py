"""The cheapest client of an AMQP broker: one channel on a socket that waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from remuda.amqp.client.transport import Link
from remuda.amqp.codec.frames import Event, method_frame
from remuda.amqp.codec.methods import BasicAck, ChannelOpen, ChannelOpenOk, Heartbeat, Method
from remuda.amqp.connection_options import parse_url

_READ: Final = 1 << 18
_TIMEOUT: Final = 120.0


class RawClient:
    def __init__(self, url: str) -> None:
        options = parse_url(url)
        self._link = Link.connect(*options.hosts[0], options)
        self.sock = self._link.sock
        self.sock.settimeout(_TIMEOUT)
        self.ask(ChannelOpen(), ChannelOpenOk)

    def ask(self, method: Method, answer: type[Method]) -> None:
        """Send a request, and wait for its answer."""
        self.sock.sendall(method_frame(1, method))
        found: list[Method] = []
        while not found:
            found = [method for _, method, _, _ in self.read() if not isinstance(method, Heartbeat)]
        assert isinstance(found[0], answer), found

    def read(self) -> list[Event]:
        return self._link.parser.feed(self.read_bytes())

    def read_bytes(self) -> bytes:
        data = self.sock.recv(_READ)
        assert data, "the broker closed the connection"
        return data

    def close(self) -> None:
        self.sock.close()


class Confirmed:
    """How many publishes were confirmed, whose numbers may come in any order."""

    def __init__(self) -> None:
        self._upto = 0
        self._ahead: set[int] = set()

    def __len__(self) -> int:
        return self._upto + len(self._ahead)

    def add(self, events: Iterable[Event]) -> None:
        for _, method, _, _ in events:
            assert isinstance(method, BasicAck | Heartbeat), method
            if isinstance(method, Heartbeat):
                continue
            if method.multiple:
                self._upto = max(self._upto, method.delivery_tag)
            else:
                self._ahead.add(method.delivery_tag)
        while self._upto + 1 in self._ahead:
            self._upto += 1
        self._ahead = {tag for tag in self._ahead if tag > self._upto}
