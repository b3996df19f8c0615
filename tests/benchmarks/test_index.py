"""The rows of the search index still run. No figure is checked: machines are busy."""

from __future__ import annotations

from benchmarks.effort import Effort
from benchmarks.index.rows import INDEX_ROWS, LAG, OPENSEARCH, SQLITE, WORDS

SMALL = Effort(rounds=1, seconds=0.01, messages=1)


def test_sqlite_is_measured() -> None:
    result = INDEX_ROWS[SQLITE](SMALL)
    assert result.remuda > 0
    assert result.settings["events"] == 3 * result.settings["indexed"]


def test_words_are_found() -> None:
    result = INDEX_ROWS[WORDS](SMALL)
    assert result.remuda > 0
    assert set(result.settings) == {"messages", "two words", "one rare word", "one common word"}


def test_the_lag_is_measured_while_messages_come() -> None:
    result = INDEX_ROWS[LAG](SMALL)
    assert 0 < result.remuda < 60
    assert result.settings["per_second"] == 10_000


def test_opensearch_is_a_row() -> None:
    assert OPENSEARCH in INDEX_ROWS
