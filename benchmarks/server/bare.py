"""`python -m benchmarks.server.bare DIR`: the least that a synced AMQP server in Python can cost. It counts messages by
their size, writes and syncs once for all that has come, confirms, and hands on. It knows no queues, no prefetch, no
acknowledgements and no recovery, so it bounds whoever has them."""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path
from typing import Final

from benchmarks.server.client import length_of
from remuda.amqp.codec.frames import method_frame
from remuda.amqp.codec.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    ConnectionOpen,
    ConnectionStartOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from remuda.server.amqp.protocol.connection import Limits, ServerConnection

_READ: Final = 1 << 18
_ROOM: Final = 64 << 20
_TAG: Final = (1 << 63) + 1


class Peer:
    """A client: one that publishes, one that consumes, or one that only asks."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.protocol: ServerConnection | None = ServerConnection(Limits(), {})
        self.queue = ""
        self.rest = b""
        self.length = 0
        self.seen = 0
        self.handed = 0
        self.around = b"", b""
        """What stands before and behind the number of a delivery."""

    def ask(self, data: bytes) -> None:
        """Answer everything until it is known what this client does."""
        protocol = self.protocol
        assert protocol is not None
        out: list[bytes] = []
        for number, method, _, _ in protocol.receive(data):
            if isinstance(method, ConnectionStartOk):
                protocol.accept()
            elif isinstance(method, ConnectionOpen):
                protocol.open()
            elif isinstance(method, ConnectionClose):
                protocol.part()
            else:
                out.append(method_frame(number, _answer(method)))
            if isinstance(method, ConfirmSelect):
                self.protocol = None
            elif isinstance(method, BasicConsume):
                self.protocol, self.queue = None, method.queue
        self.sock.sendall(b"".join([*protocol.output(), *out]))

    def take(self, data: bytes) -> bytes:
        """The publications that have come whole."""
        rest = self.rest + data
        if not self.length:
            self.length = length_of(rest)
            if not self.length:
                self.rest = rest
                return b""
            start = 14 + rest[13]  # behind the exchange
            self.queue = rest[start + 1 : start + 1 + rest[start]].decode()
        end = len(rest) // self.length * self.length
        self.rest = rest[end:]
        return rest[:end]

    def hand(self, message: bytes, many: int) -> None:
        """Give a consumer as many copies of a publication."""
        if not self.handed:
            content = message[8 + int.from_bytes(message[3:7], "big") :]
            before, tag, behind = method_frame(1, BasicDeliver("c", _TAG, False, "", self.queue)).partition(
                _TAG.to_bytes(8, "big")
            )
            assert tag
            self.around = before, behind + content
        before, behind = self.around
        first, self.handed = self.handed + 1, self.handed + many
        tags = [tag.to_bytes(8, "big") for tag in range(first, first + many)]
        self.sock.sendall(before + (behind + before).join(tags) + behind)


def _answer(method: Method) -> Method:
    match method:
        case ChannelOpen():
            return ChannelOpenOk()
        case ChannelClose():
            return ChannelCloseOk()
        case QueueDeclare():
            return QueueDeclareOk(method.queue)
        case QueueDelete():
            return QueueDeleteOk()
        case ConfirmSelect():
            return ConfirmSelectOk()
        case BasicQos():
            return BasicQosOk()
        case BasicConsume():
            return BasicConsumeOk(method.consumer_tag)
    raise ValueError(f"nobody here answers {method}")


def main(directory: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    poll, peers = select.epoll(), dict[int, Peer]()
    poll.register(listening, select.EPOLLIN)
    log, written = os.open(Path(directory) / "log", os.O_RDWR | os.O_CREAT), 0
    os.posix_fallocate(log, 0, _ROOM)
    print(f"amqp://guest:guest@127.0.0.1:{listening.getsockname()[1]}", flush=True)
    while True:
        came: list[tuple[Peer, bytes]] = []
        for handle, _ in poll.poll():
            if handle == listening.fileno():
                sock = listening.accept()[0]
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers[sock.fileno()] = Peer(sock)
                poll.register(sock, select.EPOLLIN)
                continue
            peer = peers[handle]
            data = peer.sock.recv(_READ)
            if not data:
                poll.unregister(handle)
                peers.pop(handle).sock.close()
            elif peer.protocol is not None:
                peer.ask(data)
            elif not peer.handed and (whole := peer.take(data)):
                came.append((peer, whole))
        if came:
            data = b"".join(whole for _, whole in came)
            os.pwrite(log, data, written % _ROOM if written % _ROOM + len(data) <= _ROOM else 0)
            os.fdatasync(log)
            written += len(data)
        for publisher, whole in came:
            many = len(whole) // publisher.length
            publisher.seen += many
            publisher.sock.sendall(method_frame(1, BasicAck(publisher.seen, True)))
            for peer in peers.values():
                if peer is not publisher and peer.queue == publisher.queue:
                    peer.hand(whole[: publisher.length], many)


if __name__ == "__main__":
    main(*sys.argv[1:])
