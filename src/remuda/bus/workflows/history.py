"""What was recorded of a run: its notes, by their number and in the order in which they came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from remuda.bus.publishing import bodies
from remuda.bus.workflows import numbers
from remuda.model.message import Message
from remuda.model.notes import NOTE, Note, Noted, note_headers

STEP: Final = "remuda-step"
"""The name of the step."""
KIND: Final = "remuda-kind"
RUN: Final = "remuda-run"
WORKFLOW: Final = "remuda-workflow"
VERSION: Final = "remuda-version"
STARTED: Final = "remuda-started"
ATTEMPT: Final = "remuda-attempt"
NOTED: Final = "remuda-noted"
"""With the result of a run: the numbers of its notes, by which they are found when it has ended."""
ERROR: Final = "remuda-error"
"""With a step that failed for good: the type of its error."""


class StepRecord(msgspec.Struct, frozen=True):
    """A step as it was recorded, for people and programs."""

    number: int
    name: str
    kind: str
    """step, sleep, wait, publish, call, group, now; attempt, undo, failed, cancelled, restarted; signal, member."""
    recorded: int
    started: int | None
    attempt: int
    error: str | None
    offset: int
    body: bytes
    mime_type: str

    def value(self, wanted: Any = Any) -> Any:
        return bodies.decode(self.body, self.mime_type, wanted)


def step_of(noted: Noted) -> StepRecord:
    headers = noted.headers
    started = headers.get(STARTED, "")
    return StepRecord(
        noted.number % numbers.EPOCH,
        headers.get(STEP, ""),
        headers.get(KIND, ""),
        noted.created,
        int(started) if started.isdigit() else None,
        int(headers.get(ATTEMPT, "1")),
        headers.get(ERROR),
        noted.offset,
        noted.body,
        noted.mime_type,
    )


def note_message(note: Note, kind: str, name: str, body: bytes, mime_type: str, more: Mapping[str, str]) -> Message:
    """A note as the message that is stored."""
    headers = {**note_headers(note), KIND: kind, STEP: name, **more}
    return Message(NOTE, body, id=f"{note.offset}/{note.number}", mime_type=mime_type, headers=headers)


def ranges(found: Iterable[int]) -> str:
    """Numbers as text, neighbours as one range: `0-5,9`."""
    runs: list[list[int]] = []
    for number in sorted(found):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def from_ranges(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


class History:
    """The notes of one run that count. After a restart from a step, those from there on do no longer."""

    def __init__(self, noted: Iterable[Noted] = ()) -> None:
        self.records: dict[int, StepRecord] = {}
        self.numbers: set[int] = set()
        """Of all notes, those that no longer count as well."""
        self.epoch = 0
        self.last = -1
        """The highest number of a step."""
        self.version: int | None = None
        for one in noted:
            self.add(one)

    def add(self, noted: Noted) -> None:
        self.numbers.add(noted.number)
        record = step_of(noted)
        version = noted.headers.get(VERSION, "")
        if self.version is None and version.isdigit():
            self.version = int(version)
        if record.number == numbers.RESTARTED:
            self._restart(record)
        elif noted.number // numbers.EPOCH == self.epoch or record.number == numbers.CANCELLED:
            self.keep(record)

    def keep(self, record: StepRecord) -> None:
        """What is recorded first counts."""
        if self.records.setdefault(record.number, record) is record and numbers.is_step(record.number):
            self.last = max(self.last, record.number)

    @property
    def count(self) -> int:
        """How many notes are known here. Steps side by side may add one at the same time, each only once."""
        return len(self.numbers)

    def _restart(self, record: StepRecord) -> None:
        start = int(record.value()["from"])
        self.epoch += 1
        kept = {number: one for number, one in self.records.items() if numbers.is_step(number) and number < start}
        self.records, self.last = kept, max(kept, default=-1)

    def get(self, number: int) -> StepRecord | None:
        return self.records.get(number)

    def failed_attempts(self, number: int) -> list[StepRecord]:
        """The failed attempts of a step."""
        found: list[StepRecord] = []
        while (one := self.records.get(numbers.attempt(number, len(found) + 1))) is not None:
            found.append(one)
        return found

    def undone(self) -> int | None:
        """The first step that was undone."""
        return min((number & (numbers.STEPS - 1) for number in self.records if numbers.is_undo(number)), default=None)

    def steps(self) -> list[StepRecord]:
        """The steps in their order."""
        return [one for number, one in sorted(self.records.items()) if numbers.is_step(number)]
