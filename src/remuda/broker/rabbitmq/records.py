"""Where the broker tells what happened: every message taken in, every change of state that it sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from remuda.model.records import Appended, Events


class RecordSink(Protocol):
    """Takes records without waiting; `flush` returns when all of them are kept."""

    def append(self, records: Sequence[Appended | Events]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class NoRecords:
    """Keeps nothing."""

    def append(self, records: Sequence[Appended | Events]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
