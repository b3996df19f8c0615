"""The errors for callers while nothing can be stored, as when the disk is full."""

from __future__ import annotations

from remuda.model.errors import DiskFull, StorageError, TooManyFiles


class NotReplicated(StorageError):
    """A synchronizer did not store what it must have before anything in it is confirmed."""

    passing = True


def refusal(trouble: StorageError) -> StorageError:
    """For commands that come meanwhile."""
    return type(trouble)(
        f"{_cause(trouble)}, so nothing can be stored; nothing was changed, and everything accepted before is kept. "
        "The broker goes on by itself once that is fixed: try again then"
    )


def unconfirmed(trouble: StorageError) -> StorageError:
    """For callers that wait for what could not be written."""
    return type(trouble)(
        f"{_cause(trouble)}, so this command is not confirmed. It is held in memory and stored as soon as that is "
        "fixed, unless the process ends first; repeating it may do it twice. Everything confirmed before is kept"
    )


def _cause(trouble: StorageError) -> str:
    if isinstance(trouble, DiskFull):
        return "the disk has no room"
    if isinstance(trouble, TooManyFiles):
        return "no file handle is left"
    return str(trouble)
