"""`python -m benchmarks.server.client publish|consume URL QUEUE COUNT BYTES WINDOW`: a client in its own process.

It connects, says so, waits for a line, works, and says when it is done, and what share of a core it took. To be the
bottleneck of neither server it does as little as it can: its messages are all alike, so what it sends is made once, and
what it gets is counted by its size.
"""

from __future__ import annotations

import sys
import time

from benchmarks.raw_amqp import Confirmed, RawClient
from remuda.amqp.codec.frames import HEARTBEAT, add_content, method_frame
from remuda.amqp.codec.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
)
from remuda.amqp.codec.properties import PERSISTENT, Properties, encode_properties

_PREFETCH = 1000


def publish(url: str, queue: str, count: int, size: int, window: int) -> None:
    client = RawClient(url)
    client.ask(ConfirmSelect(), ConfirmSelectOk)
    frames: list[bytes] = []
    properties = encode_properties(Properties(delivery_mode=PERSISTENT))
    add_content(frames, method_frame(1, BasicPublish(0, "", queue)), 1, properties, bytes(size))
    message, batch = b"".join(frames), max(window // 4, 1)
    several = message * batch
    _await_start()
    sent, confirmed = 0, Confirmed()
    while len(confirmed) < count:
        while sent < count and sent - len(confirmed) + batch <= window:
            many = min(batch, count - sent)
            client.sock.sendall(several if many == batch else message * many)
            sent += many
        confirmed.add(client.read())


def consume(url: str, queue: str, count: int, size: int, window: int) -> None:
    client = RawClient(url)
    client.ask(BasicQos(0, _PREFETCH), BasicQosOk)
    client.sock.sendall(method_frame(1, BasicConsume(0, queue, "c")))
    rest, seen, length, prefix = _after(BasicConsumeOk, client), 0, 0, b""
    _await_start()
    while True:
        length = length or length_of(rest)
        prefix = prefix or rest[: 13 if length else 0]
        many = len(rest) // length if length else 0
        if many:
            last = (many - 1) * length
            tag = int.from_bytes(rest[last + 13 : last + 21], "big")
            assert rest.startswith(prefix, last), "something else came between the deliveries"
            seen += many
            assert tag == seen, f"delivery {tag} came as number {seen}"
            client.sock.sendall(method_frame(1, BasicAck(tag, True)))
            rest = rest[many * length :]
        if seen >= count:
            return
        rest = _without_heartbeats(rest + client.read_bytes())


def _after(method: type[Method], client: RawClient) -> bytes:
    """What follows the answer to a request: deliveries may come along with it."""
    raw = b""
    while not (end := length_of(raw, frames=1)):
        raw = _without_heartbeats(raw + client.read_bytes())
    assert raw[7:11] == method.index, raw[:end]
    return raw[end:]


def _without_heartbeats(raw: bytes) -> bytes:
    """Messages hold nothing that looks like one."""
    return raw.replace(HEARTBEAT, b"") if HEARTBEAT in raw else raw


def length_of(raw: bytes, frames: int = 3) -> int:
    """How many bytes the first delivery takes: a method, a header and a body; 0 if it has not come whole."""
    end = 0
    for _ in range(frames):
        if len(raw) < end + 7:
            return 0
        end += 8 + int.from_bytes(raw[end + 3 : end + 7], "big")
    return end if end <= len(raw) else 0


def _await_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    _began.extend((time.process_time(), time.perf_counter()))


_began: list[float] = []


if __name__ == "__main__":
    work, url, queue, *numbers = sys.argv[1:]
    {"publish": publish, "consume": consume}[work](url, queue, *map(int, numbers))
    print("done", (time.process_time() - _began[0]) / (time.perf_counter() - _began[1]), flush=True)
