from __future__ import annotations

from collections.abc import Iterator

import pytest

from remuda.bus.bus import Bus
from tests.server.site import Site, serving


@pytest.fixture
def site() -> Iterator[Site]:
    """A fresh bus in memory, with a pull queue for `order.*`, served without a login."""
    with Bus() as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.*"])
        with serving(bus) as made:
            yield made
