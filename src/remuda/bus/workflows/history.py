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
    """The notes of one run that count. After a restart from a step, those of that step and later ones do no longer.
    What belongs to an earlier one, such as the answer to a call, counts whenever it comes."""

    def __init__(self, noted: Iterable[Noted] = ()) -> None:
        self.records: dict[int, StepRecord] = {}
        self.numbers: set[int] = set()
        """Of all notes, those that no longer count as well."""
        self.last = -1
        """The highest number of a step."""
        self.version: int | None = None
        self._restarts: list[int] = []
        """The step that each restart began with."""
        self._epochs: dict[int, int] = {}
        """Of each step that was not recorded in the first epoch, the epoch in which it was."""
        for one in noted:
            self.add(one)

    @property
    def epoch(self) -> int:
        """How often the run was restarted."""
        return len(self._restarts)

    def add(self, noted: Noted) -> None:
        version = noted.headers.get(VERSION, "")
        if self.version is None and version.isdigit():
            self.version = int(version)
        self.learn(noted.number, step_of(noted))

    def learn(self, number: int, record: StepRecord) -> None:
        """Add a note that is known, or was just made. One that is known already changes nothing."""
        if number in self.numbers:
            return
        self.numbers.add(number)
        if record.number == numbers.RESTARTED:
            self._restart(record)
        elif record.number == numbers.CANCELLED or self._counts(record.number, number // numbers.EPOCH):
            self._keep(record, number // numbers.EPOCH)

    def _counts(self, number: int, epoch: int) -> bool:
        """Whether no restart since has taken it back."""
        since = self._restarts[epoch:]
        if not since:
            return True
        step = numbers.kept_with(number)
        return step is not None and step < min(since)

    def _keep(self, record: StepRecord, epoch: int) -> None:
        """What is recorded first counts."""
        if self.records.setdefault(record.number, record) is record and numbers.is_step(record.number):
            self.last = max(self.last, record.number)
            if epoch:
                self._epochs[record.number] = epoch

    @property
    def count(self) -> int:
        """How many notes are known here. Steps side by side may add one at the same time, each only once."""
        return len(self.numbers)

    def _restart(self, record: StepRecord) -> None:
        start = int(record.value()["from"])
        self._restarts.append(start)
        self.records = {
            number: one
            for number, one in self.records.items()
            if (step := numbers.kept_with(number)) is not None and step < start
        }
        self.last = max(filter(numbers.is_step, self.records), default=-1)
        self._epochs = {step: epoch for step, epoch in self._epochs.items() if step < start}

    def beside(self, step: int, number: int) -> int:
        """The number of a note that belongs to a step, with the epoch in which the step was recorded."""
        return self._epochs.get(step, 0) * numbers.EPOCH + number

    def hears(self, number: int) -> bool:
        """Whether what comes for this note is still wanted: its step was not taken back, and the run not given up."""
        own = number % numbers.EPOCH
        step = numbers.owner(own)
        if step is None or step not in self.records or self.beside(step, own) != number:
            return False
        return own in self.records or not (numbers.FAILED in self.records or numbers.CANCELLED in self.records)

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
