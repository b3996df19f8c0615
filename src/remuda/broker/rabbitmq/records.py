"""Where a broker's records go: every message that was taken in, and every change of its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from remuda.model.records import Appended, Events


class RecordSink(Protocol):
    """Keeps records in the order in which one process gives them.

    An event names its message by the number of its id (`remuda.log.streams.numbers.reference`), which every process
    can tell; the numbers in the `first` of both kinds of records are not looked at.
    """

    def append(self, records: Sequence[Appended | Events]) -> None:
        """Take records over. They are on their way, and safe after `flush`."""
        ...

    def flush(self) -> None:
        """Wait until everything appended so far is kept."""
        ...

    def close(self) -> None: ...


class NoRecords:
    """Keeps nothing."""

    def append(self, records: Sequence[Appended | Events]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
