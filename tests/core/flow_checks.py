"""What rules of flow promise, folded from the log alone (F1, F2, F3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from remuda.model.messages import cell
from remuda.model.records import Appended, Events
from remuda.model.state import State
from remuda.model.values.durations import SECOND


class Checked:
    """What must never be broken, folded from the log alone: a record that breaks it is where it went wrong."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        self.rules = rules
        self.key_of: dict[int, str] = {}
        self.live: dict[int, bool] = {}
        """Messages that have not ended, and whether they are in flight."""
        self.later: set[int] = set()
        """Messages that come into their line some time after they were published."""
        self.started: list[tuple[int, str]] = []

    def read(self, records: Iterable[Any]) -> None:
        for record in records:
            if isinstance(record, Appended):
                for row in range(len(record)):
                    if not cell(record.queues, row):
                        continue  # skipped
                    self.key_of[record.first + row] = record.messages[row].key or ""
                    if record.messages[row].due is not None:
                        self.later.add(record.first + row)
                    self.live[record.first + row] = False
            elif isinstance(record, Events):
                for event in record.rows:
                    for offset in range(event.first, event.first + event.count):
                        self._moved(offset, event.state, record.time)

    def _moved(self, offset: int, state: State, now: int) -> None:
        if state is State.FETCHED:
            assert not self.live[offset], "it waits"
            self.live[offset] = True
            self._started(offset, now)
        elif state in (State.QUEUED, State.RETRY):
            self.live[offset] = False
        elif state is not State.SUCCESS:
            self.live.pop(offset, None)

    def _started(self, offset: int, now: int) -> None:
        rules, key = self.rules, self.key_of[offset]
        self.started.append((now, key))
        flights = [one for one, out in self.live.items() if out]
        same = [one for one in flights if self.key_of[one] == key]
        if rules.get("ordered"):
            assert same == [offset], "two of a key at once"
            if rules.get("on_retry") != "pass":
                others = self.live.keys() - self.later
                earlier = [one for one in others if self.key_of[one] == key and one < offset]
                assert not earlier, "out of order"
        most = rules.get("key_limits", {}).get(key, rules.get("concurrency_per_key", 1000))
        assert len(same) <= most
        assert len(flights) <= rules.get("concurrency", 1000)
        if "rate" in rules:
            assert sum(at > now - SECOND for at, _ in self.started) <= 20 + 3
        if "rate_per_key" in rules:
            assert sum(at > now - SECOND and one == key for at, one in self.started) <= 5 + 2
