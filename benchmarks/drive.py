"""One measured run: a number of messages go through a session, from the first publish to the last acknowledgement."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from benchmarks.contenders.contender import Session
from benchmarks.workload import Workload

_POLL: Final = 0.0002
_PATIENCE: Final = 20.0


class Stuck(Exception):
    """Messages that were published did not come out again."""


def drive(session: Session, workload: Workload, count: int) -> float:
    """The seconds that `count` messages take."""
    bodies = workload.bodies()
    if workload.publishers == 1:
        return _alternate(session, workload, bodies, count)
    return _concurrent(session, workload, bodies, count)


def _alternate(session: Session, workload: Workload, bodies: list[bytes], count: int) -> float:
    """One thread publishes a batch, then takes it."""
    touched, left = 0, count
    start = time.perf_counter()
    while left:
        size = min(workload.batch, left)
        session.publish(bodies if size == workload.batch else bodies[:size])
        touched += session.consume(size)
        left -= size
    seconds = time.perf_counter() - start
    _check(touched, count, workload)
    return seconds


def _concurrent(session: Session, workload: Workload, bodies: list[bytes], count: int) -> float:
    """Publishers' threads and this one, which takes what comes."""
    gate = threading.Barrier(workload.publishers + 1)

    def publish(left: int) -> None:
        gate.wait()
        while left:
            size = min(workload.batch, left)
            session.publish(bodies if size == workload.batch else bodies[:size])
            left -= size

    shares = [count // workload.publishers] * workload.publishers
    shares[0] += count - sum(shares)
    with ThreadPoolExecutor(workload.publishers) as pool:
        publishers = [pool.submit(publish, share) for share in shares]
        gate.wait()
        start = last = time.perf_counter()
        touched = 0
        while touched < count * workload.body_bytes:
            found = session.consume(workload.batch)
            touched += found
            if found:
                last = time.perf_counter()
            elif any(publisher.done() and publisher.exception() for publisher in publishers):
                break
            elif time.perf_counter() - last > _PATIENCE:
                raise Stuck(f"{touched // workload.body_bytes} of {count} messages came out of {session!r}")
            else:
                time.sleep(_POLL)
        for publisher in publishers:
            publisher.result()
    _check(touched, count, workload)
    return last - start


def _check(touched: int, count: int, workload: Workload) -> None:
    if touched != count * workload.body_bytes:
        raise Stuck(f"{workload.name}: {touched} bytes came out where {count * workload.body_bytes} went in")
