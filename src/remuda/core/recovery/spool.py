"""What was taken in from the spool, so that no row of it comes in twice.

An application that cannot reach the broker writes batches of rows into the spool, which it numbers, and writes one
again if it does not know what became of it. A batch is taken in part by part, and a crash may come between any two
records.
"""

from __future__ import annotations

import msgspec

from remuda.model.records import Appended, SpoolTaken


class Progress(msgspec.Struct, array_like=True):
    """How far the newest batch of an application is taken in, and which of its rows no queue took."""

    batch: int
    rows: int = 0
    done: bool = False
    refused: dict[int, str] = {}


class Spool:
    """The newest batch of every application; those before it are done."""

    def __init__(self) -> None:
        self.taken: dict[str, Progress] = {}
        self._announced: SpoolTaken | None = None

    def progress(self, app: str, batch: int) -> Progress:
        """How far a batch is taken in."""
        known = self.taken.get(app)
        if known is None or known.batch < batch:
            return Progress(batch)
        return known if known.batch == batch else Progress(batch, done=True)

    def note(self, record: SpoolTaken) -> None:
        """Count the rows of this record as taken in."""
        before = self.progress(record.app, record.batch)
        refused = {**before.refused, **record.refused} if record.rows > before.rows else before.refused
        self.taken[record.app] = Progress(record.batch, record.rows, record.done, refused)

    def replay(self, record: SpoolTaken) -> None:
        """A record from the log, which counts only once the messages it announces are there."""
        self._announced = None
        if record.first is None:
            self.note(record)
        else:
            self._announced = record

    def replay_messages(self, record: Appended) -> None:
        announced, self._announced = self._announced, None
        if announced is not None and announced.first == record.first:
            self.note(announced)

    def retract(self, now: int) -> SpoolTaken | None:
        """At the end of the log: what to record so that the next messages are not mistaken for those announced."""
        announced, self._announced = self._announced, None
        if announced is None:
            return None
        stands = self.progress(announced.app, announced.batch)
        return SpoolTaken(announced.app, announced.batch, stands.rows, now, stands.done)

    def forget(self, app: str) -> None:
        """Drop the progress of an application that will not return."""
        self.taken.pop(app, None)
