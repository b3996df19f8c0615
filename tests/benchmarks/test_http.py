"""The rows of HTTP and the dashboard still run. No figure is checked: machines are busy."""

from __future__ import annotations

import pytest

from benchmarks.effort import Effort
from benchmarks.http import filled, rows
from remuda.index import Query, open_index
from remuda.model.state import State

SMALL = Effort(rounds=1, seconds=0.01, messages=400)


def test_batches_are_published_and_compared_with_the_broker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_BATCH", 20)
    result = rows.HTTP_ROWS["http/publish/batch"](SMALL)
    assert result.remuda > 0
    assert result.limit
    assert result.settings["cpu_us_per_message"] >= 0


def test_pages_are_asked_for_over_a_filled_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filled, "QUEUES", 25)
    monkeypatch.setattr(filled, "BATCH", 20)
    monkeypatch.setattr(rows, "_ASKED", 4)
    result = rows.HTTP_ROWS["dashboard/message"](SMALL)
    assert result.remuda > 0
    directory, known = rows._filled(SMALL.messages)
    assert len(known) == 20
    index = open_index(directory / "index")
    counts = {state: len(index.search(Query(states=frozenset({state}), limit=500)).messages) for state in State}
    index.close()
    assert counts[State.QUEUED] == 60
    assert counts[State.DEAD] == 85
    assert counts[State.COMPLETED] == 255
