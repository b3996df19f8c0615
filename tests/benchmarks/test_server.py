"""The rows of the AMQP server are measured as they say."""

from __future__ import annotations

from benchmarks.server.rows import SERVER_ROWS, bare, measure, remuda


def test_a_round_moves_all_messages_and_counts_syncs() -> None:
    syncs: list[int] = []
    with remuda("always", syncs, warm=False) as ours:
        found = measure(ours, pairs=2, size=100, count=400, durable=True, kind="classic", window=100)
    assert found.rate > 0
    assert found.cpu >= 0
    assert 0 < syncs[0] < 400  # many messages for each


def test_the_limit_is_measured_with_the_same_clients() -> None:
    with bare() as least:
        found = measure(least, pairs=2, size=100, count=400, durable=True, kind="classic", window=100)
    assert found.rate > 0


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(SERVER_ROWS) == 13
    assert "server/synced/2-2/1KiB" in SERVER_ROWS
