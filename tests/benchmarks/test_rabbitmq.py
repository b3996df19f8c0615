"""The RabbitMQ rows still run, for every client."""

from __future__ import annotations

import pytest

from benchmarks.effort import Effort
from tests.servers.rabbitmq import RabbitNode


@pytest.mark.parametrize("row", ["rabbitmq/publish", "rabbitmq/consume"])
def test_all_clients_are_measured(row: str, rabbit: RabbitNode, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pika")
    pytest.importorskip("aio_pika")
    from benchmarks.rabbitmq import rows

    monkeypatch.setattr(rows, "_LEAST", 400)
    result = rows.rabbitmq_rows(rabbit.url)[row](Effort(rounds=1, seconds=0.0))
    assert result.name == row
    assert result.remuda > 0
    assert set(result.peers) == {"pika", "pika-select", "aio-pika"}
    assert all(result.peers.values())
    assert all(result.settings["cpu_us_per_message"].values())
