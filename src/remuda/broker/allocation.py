"""Memory of batches is used again instead of being asked of the system for each."""

from __future__ import annotations

from typing import Final

_LARGEST: Final = 16 << 20


def keep_freed_memory() -> None:
    """Let freed blocks of up to 16 MiB stay with the process.

    glibc gives blocks of 128 KiB and more straight back to the system, and a batch then pays for its pages again: more
    than for everything else. It raises that limit to the size of any larger block that is freed, so one is, untouched.
    """
    bytes(_LARGEST)
