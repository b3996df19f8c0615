"""Carries a run on: from what was recorded to its end, to the next wait, or back through its undos."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from functools import partial
from typing import Any

from remuda.bus.handlers.context import Context
from remuda.bus.handlers.exceptions import Dead, NotNow, Retry, Suspended
from remuda.bus.handlers.loops import LoopHolder, drive, drive_async
from remuda.bus.handlers.result import storable
from remuda.bus.publishing.bodies import Undecodable
from remuda.bus.workflows import numbers
from remuda.bus.workflows.definition import Definition, Family
from remuda.bus.workflows.errors import Diverged, UndoFailed, Unwound, WorkflowCancelled
from remuda.bus.workflows.history import NOTED, StepRecord, ranges
from remuda.bus.workflows.link import link_of
from remuda.bus.workflows.workflow_run import Run

Steps = Generator[Any, Any, Any]
_DETAIL = 6000
_NOT_ENDED = (Suspended, Diverged, Undecodable, Retry, NotNow)
"""Whatever it has to undo, a run that meets one of these has not failed."""


def conduct(family: Family, context: Context) -> Any:
    """The handler of a workflow that is a function."""
    return drive(_conducted(family, context, is_async=False), LoopHolder())


async def conduct_async(family: Family, context: Context) -> Any:
    """The handler of a workflow that is a coroutine."""
    return await drive_async(_conducted(family, context, is_async=True))


def _conducted(family: Family, context: Context, *, is_async: bool) -> Steps:
    message = context.message
    begins_again = context.is_fresh
    while True:
        run = Run(family, link_of(family.bus, loop=is_async), context.place, message, is_async=is_async)
        yield from run.load()
        definition = family.choose(run.history.version)
        run.use(definition)
        failed = run.history.get(numbers.FAILED)
        if failed is not None:
            run.unwinding = True
        given = definition.given(message.body, message.mime_type)
        result: Any = None
        error: BaseException | None = None
        try:
            result = yield definition.function(run, **given)
        except (Exception, Suspended, WorkflowCancelled, Unwound) as raised:
            error = raised
        # Whatever the function made of it: a run that waits, diverged or was cancelled has not ended by itself.
        error = run.ended or error
        if isinstance(error, _NOT_ENDED):
            raise error
        if failed is not None or error is None:
            break
        before = run.failed_by(error) if begins_again and isinstance(error, Exception) else None
        if before is None or not before[1]:
            break
        # It had failed for good and was reprocessed: it begins again with the step by which it failed.
        begins_again = False
        yield from run.record(numbers.RESTARTED, "restarted", run.history.records[before[0]].name, {"from": before[0]})
    if failed is None:
        if error is None:
            run.check_complete()
            context.result_headers = {NOTED: ranges(run.history.numbers)}
            return result
        failed = yield from _failed(run, definition, error)
        if failed is None:
            raise Dead(str(error)) if isinstance(error, WorkflowCancelled) else error
    run.revive()
    yield from _undo(run, definition, failed)


def _failed(run: Run, definition: Definition, error: BaseException) -> Steps:
    """Record that the run has failed, if there is something to undo: from now on it goes back, whatever happens."""
    cancelled = run.history.get(numbers.CANCELLED)
    wants = cancelled is None or bool(cancelled.value().get("undo", True))
    if not run.undos or not wants:
        return None
    told = {
        "type": type(error).__name__,
        "text": storable(str(error))[:_DETAIL],
        "traceback": storable("".join(traceback.format_exception(error)))[-_DETAIL:],
        "step": next(iter(run.failed_by(error) or ()), None),
    }
    run.revive()
    return (yield from run.record(numbers.FAILED, "failed", definition.name, told))


def _undo(run: Run, definition: Definition, failed: StepRecord) -> Steps:
    """Undo the finished steps in reverse. Each undo is recorded, and retried like a step."""
    told = failed.value()
    why = f"{told['type']}: {told['text']}"
    undone: list[str] = []
    for undo in run.undos:
        number, label = numbers.undo(undo.number), f"undo {undo.name}"
        if run.history.get(number) is None:
            try:
                yield from run.attempt(number, "undo", label, partial(undo.function, undo.value), definition.retry)
            except Exception as error:
                raise UndoFailed(
                    f"{why}. Undone: {', '.join(undone) or 'nothing'}. Not undone: {undo.name}, since its undo failed: "
                    f"{type(error).__name__}: {error}. The steps before it stand; reprocessing tries this undo again"
                ) from error
        undone.append(undo.name)
    raise Dead(f"{why}. Undone: {', '.join(undone)}")
