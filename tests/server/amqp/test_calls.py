"""S4: what requests cost the server in calls and syncs, which are the same on every machine."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from remuda.amqp.client.connection import Connection
from tests.server.amqp.kit import fresh
from tests.servers.amqpd import RunningServer

_MOST = 60
"""The broker takes some forty more: both together stay below 120."""
_PUBLISHES = 50


@pytest.mark.alone
def test_s4_a_publish_that_is_waited_for_takes_few_calls() -> None:
    """Of the server and its codec, in Python; beside these are those of the event loop and of the broker.

    What a publish still has to do when it is confirmed is waited for, and the median counts, since the server also
    looks after itself now and then: so the number is the same on every machine.
    """
    calls = 0
    own = (f"remuda{os.sep}server{os.sep}", f"remuda{os.sep}amqp{os.sep}")

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and any(part in frame.f_code.co_filename for part in own)

    async def profile(function: Any) -> None:
        sys.setprofile(function)

    async def nothing() -> None:
        pass

    name = fresh()
    with RunningServer() as server, Connection(server.url) as connection:
        channel = connection.channel(confirms=True)
        channel.declare_queue(name)
        totals = []
        for number in range(2 * _PUBLISHES):
            if number == _PUBLISHES:
                server.run(profile(count))
            channel.publish("", name, b"x").wait(60)
            server.run(nothing())
            totals.append(calls)
        server.run(profile(None))
    costs = [after - before for before, after in zip(totals[_PUBLISHES:], totals[_PUBLISHES + 1 :], strict=False)]
    assert 20 < statistics.median(costs) < _MOST


def test_s4_a_queue_is_declared_with_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It consists of a queue, one for its dead letters, and the binding that describes it."""
    syncs, sync = 0, os.fdatasync

    def counted(file: int) -> None:
        nonlocal syncs
        syncs += 1
        sync(file)

    with RunningServer(str(tmp_path / "data")) as server, Connection(server.url) as connection:
        channel = connection.channel()
        monkeypatch.setattr(os, "fdatasync", counted)
        for number in range(20):
            channel.declare_queue(f"q{number}", arguments={"x-dead-letter-exchange": ""})
        assert 20 <= syncs <= 45  # at most one more, for the consumer of the dead letters
