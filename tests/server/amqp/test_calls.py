"""S4: what a publish costs the server in calls, which are the same on every machine."""

from __future__ import annotations

import os
import sys
from typing import Any

from remuda.amqp.client.connection import Connection
from tests.server.amqp.kit import fresh
from tests.servers.amqpd import RunningServer

_MOST = 75
_PUBLISHES = 50


def test_s4_a_publish_that_is_waited_for_takes_few_calls(server: RunningServer) -> None:
    """Of the server and its codec, in Python; beside these are those of the event loop and of the broker."""
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
        for number in range(2 * _PUBLISHES):
            if number == _PUBLISHES:
                server.run(profile(count))
            channel.publish("", name, b"x").wait(60)
        server.run(profile(None))
    assert calls / _PUBLISHES < _MOST
