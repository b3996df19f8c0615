"""Buses on one RabbitMQ that are closed when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remuda import Bus

MakeBus = Callable[..., Bus]


@pytest.fixture
def make_bus_here(clean_url: str) -> Iterator[MakeBus]:
    made: list[Bus] = []

    def make(**options: Any) -> Bus:
        settings = {"message.retry.min.interval": "50ms", "message.retry.intervals": "100ms"}
        bus = Bus(clean_url, settings={**settings, **options.pop("settings", {})}, **options)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        bus.close()
