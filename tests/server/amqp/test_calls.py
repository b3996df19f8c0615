"""S4: what a publish costs the server in calls, which are the same on every machine."""

from __future__ import annotations

import os
import statistics
import sys
from typing import Any

from remuda.amqp.client.connection import Connection
from tests.server.amqp.kit import fresh
from tests.servers.amqpd import RunningServer

_MOST = 60
_PUBLISHES = 50


def test_s4_a_publish_that_is_waited_for_takes_few_calls(server: RunningServer) -> None:
    """Of the server and its codec, in Python; beside these are those of the event loop and of the broker.

    The median counts: now and then the server looks after the queues and clients of all tests, more often the slower
    the machine is.
    """
    calls = 0
    own = (f"remuda{os.sep}server{os.sep}", f"remuda{os.sep}amqp{os.sep}")

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and any(part in frame.f_code.co_filename for part in own)

    async def profile(function: Any) -> None:
        sys.setprofile(function)

    name = fresh()
    with Connection(server.url) as connection:
        channel = connection.channel(confirms=True)
        channel.declare_queue(name)
        totals = []
        for number in range(2 * _PUBLISHES):
            if number == _PUBLISHES:
                server.run(profile(count))
            channel.publish("", name, b"x").wait(60)
            totals.append(calls)
        server.run(profile(None))
    costs = [after - before for before, after in zip(totals[_PUBLISHES:], totals[_PUBLISHES + 1 :], strict=False)]
    assert 20 < statistics.median(costs) < _MOST
