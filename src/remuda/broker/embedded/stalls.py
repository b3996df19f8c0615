"""What callers are told while nothing can be kept for a while, as when the disk is full."""

from __future__ import annotations

from remuda.model.errors import DiskFull, StorageError, TooManyFiles


def refusal(trouble: StorageError) -> StorageError:
    """For whoever comes meanwhile."""
    return type(trouble)(
        f"{_cause(trouble)}, and nothing can be kept before that is mended; nothing was changed, everything accepted "
        "before is kept. The broker goes on by itself: try again then"
    )


def unconfirmed(trouble: StorageError) -> StorageError:
    """For whoever was waiting for what could not be written."""
    return type(trouble)(
        f"{_cause(trouble)}: what was asked is not confirmed. It is held in memory and kept as soon as that is "
        "mended, unless the process ends before; asking again may do it twice. Everything confirmed before is kept"
    )


def _cause(trouble: StorageError) -> str:
    if isinstance(trouble, DiskFull):
        return "the disk has no room"
    if isinstance(trouble, TooManyFiles):
        return "no file handle is left"
    return str(trouble)
