"""What can become of a step, and of a run, besides going well."""

from __future__ import annotations


class StepFailed(Exception):
    """A step failed, and is not tried again. A workflow may catch this and go on; it is recorded like a result."""

    def __init__(self, step: str, error_type: str, text: str) -> None:
        super().__init__(f"step {step} failed: {error_type}: {text}")
        self.step = step
        self.error_type = error_type
        self.text = text

    def __reduce__(self) -> tuple[type[StepFailed], tuple[str, str, str]]:
        return StepFailed, (self.step, self.error_type, self.text)


class NotRecordable(Exception):
    """A step was done, and what it returned cannot be encoded. It is not tried again: that would do it twice."""


class WaitTimeout(Exception):
    """What a workflow waited for did not come in time. It is recorded: it stays so whatever comes later."""


class MembersFailed(Exception):
    """Too many members of a group failed for its policy. `results` has what became of each."""

    def __init__(self, text: str, results: list[object] | None = None) -> None:
        super().__init__(text)
        self.results = results or []


class Diverged(Exception):
    """The code does not do what was recorded: it was changed under a running workflow. Nothing was lost."""


class UndoFailed(Exception):
    """A step could not be undone. The message is kept with the whole story; reprocessing it tries that undo again."""


class WorkflowCancelled(BaseException):
    """Somebody cancelled the workflow. Like a cancellation, it is not caught by `except Exception`."""


class Unwound(BaseException):
    """What was recorded has been replayed, so that its undos are known; nothing new is done."""
