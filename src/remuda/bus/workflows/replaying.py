"""Replays what was recorded of a run against the code of today, for tests: nothing is done, and nothing is recorded."""

from __future__ import annotations

from typing import Any, NoReturn

from remuda.bus.handlers.exceptions import Suspended
from remuda.bus.handlers.loops import LoopHolder, drive, drive_async, run_on_new_loop
from remuda.bus.workflows.definition import Definition, Family
from remuda.bus.workflows.errors import Diverged, Unwound, WorkflowCancelled
from remuda.bus.workflows.history import StepRecord
from remuda.bus.workflows.run import Steps
from remuda.bus.workflows.workflow_run import Run
from remuda.model.document import Document
from remuda.model.notes import Note, Noted


class _Recording:
    """A link to what was recorded, and to nothing else."""

    def __init__(self, notes: list[Noted]) -> None:
        self._notes = notes

    def notes(self, queue: str, offset: int) -> list[Noted]:
        return self._notes

    def publish(self, *_: Any) -> NoReturn:
        raise Unwound

    def mailbox(self, *_: Any) -> NoReturn:
        raise Unwound

    def pause(self, seconds: float) -> None: ...

    def now(self) -> int:
        return max((one.created for one in self._notes), default=0)


def replay(family: Family, document: Document, queue: str, notes: list[Noted]) -> list[StepRecord]:
    """The steps of a run that the code of today comes to, in its way; raises `Diverged` at the first that differs."""
    message = document.message
    place = Note(queue, document.offset, 0)
    recorded = next((one.headers["remuda-version"] for one in notes if "remuda-version" in one.headers), "")
    definition = family.choose(int(recorded) if recorded.isdigit() else None)
    run = Run(family, _Recording(notes), place, message, is_async=definition.is_async)
    steps = _replayed(run, definition, message.body, message.mime_type)
    if definition.is_async:
        run_on_new_loop(drive_async(steps))
    else:
        drive(steps, LoopHolder())
    return run.history.steps()


def _replayed(run: Run, definition: Definition, body: bytes, mime_type: str) -> Steps:
    yield from run.load()
    run.use(definition)
    run.unwinding = True
    try:
        yield definition.function(run, **definition.given(body, mime_type))
        run.check_complete()
    except (Unwound, Suspended, WorkflowCancelled, Exception) as error:
        if isinstance(run.ended or error, Diverged):
            raise (run.ended or error) from None
        # Else it came as far as was recorded.
