"""A broker on loopback whose channels hang: it speaks the protocol, and does not answer what it is told to forget."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from remuda.amqp.codec.frames import PROTOCOL_HEADER, FrameParser, add_content, method_frame
from remuda.amqp.codec.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionUpdateSecret,
    Method,
    QueueDeclare,
    QueueDeclareOk,
)
from remuda.amqp.codec.properties import EMPTY

_ANSWERS: Final[dict[type[Method], Method]] = {
    ConnectionOpen: ConnectionOpenOk(),
    ConnectionClose: ConnectionCloseOk(),
    ChannelOpen: ChannelOpenOk(),
    ChannelClose: ChannelCloseOk(),
    BasicQos: BasicQosOk(),
    QueueDeclare: QueueDeclareOk("q", 0, 0),
}


LIMIT: Final = 60.0


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class ForgetfulBroker:
    """Each connection has a thread. `forget` is how often each kind of request is not answered: from then on its
    channel hangs, as one of RabbitMQ's does behind a queue without a leader, until `remember`."""

    def __init__(self, channel_max: int = 100, **forget: int) -> None:
        self.forget = Counter(forget)
        self._answers = _ANSWERS | {ConnectionStartOk: ConnectionTune(channel_max, 131072, 0)}
        self.seen: list[tuple[int, str]] = []
        """Channel and name of all that came, in order."""
        self.acked: list[tuple[int, bool]] = []
        """Tags that were acknowledged, and whether with all before them."""
        self.secrets: list[str] = []
        """Passwords, of logins and as they were renewed."""
        self.consumers: list[tuple[int, str]] = []
        """Channel and tag of those who consume, in order."""
        self._hanging: dict[tuple[socket.socket, int], list[Method]] = defaultdict(list)
        self._guard = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.url = f"amqp://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ForgetfulBroker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        with self._guard:
            sockets, self._sockets = self._sockets, []
            self._hanging.clear()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def remember(self) -> None:
        """Answer what was left unanswered, in its order."""
        with self._guard:
            hanging = dict(self._hanging)
            self._hanging.clear()
            for (one, number), methods in hanging.items():
                for method in methods:
                    self._answer(one, number, method)

    def deliver(self, consumers: Sequence[tuple[int, str]], properties: bytes = EMPTY) -> None:
        """Send each of these consumers a message, in one write; the first one's tag is 1, and the bodies tell tags."""
        out: list[bytes] = []
        for tag, (number, consumer) in enumerate(consumers, 1):
            frame = method_frame(number, BasicDeliver(consumer, tag, False, "", "q"))
            add_content(out, frame, number, properties, b"%d" % tag)
        with self._guard:
            self._sockets[-1].sendall(b"".join(out))

    def count(self, name: str) -> int:
        return sum(name == one for _, one in self.seen)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                with self._guard:
                    self._sockets.append(one)
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        parser = FrameParser()
        with contextlib.suppress(OSError):
            header = b""
            while len(header) < len(PROTOCOL_HEADER):
                header += one.recv(len(PROTOCOL_HEADER) - len(header)) or b"?" * 8
            one.sendall(method_frame(0, ConnectionStart()))
            while data := one.recv(65536):
                for number, method, _, _ in parser.feed(data):
                    with self._guard:
                        self._take(one, number, method)

    def _take(self, one: socket.socket, number: int, method: Method) -> None:
        name = type(method).__name__
        self.seen.append((number, name))
        place = one, number
        if place in self._hanging or self.forget[name] > 0:
            if place not in self._hanging:
                self.forget[name] -= 1
            self._hanging[place].append(method)
            return
        self._answer(one, number, method)

    def _answer(self, one: socket.socket, number: int, method: Method) -> None:
        answer = self._answers.get(type(method))
        if isinstance(method, ConnectionStartOk):
            self.secrets.append(method.response.rpartition(b"\0")[2].decode())
        elif isinstance(method, ConnectionUpdateSecret):
            self.secrets.append(method.new_secret.decode())
        if isinstance(method, BasicAck):
            self.acked.append((method.delivery_tag, method.multiple))
        if isinstance(method, BasicConsume):
            self.consumers.append((number, method.consumer_tag))
            answer = BasicConsumeOk(method.consumer_tag)
        elif isinstance(method, BasicCancel):
            answer = BasicCancelOk(method.consumer_tag)
        if answer is not None:
            one.sendall(method_frame(number, answer))
