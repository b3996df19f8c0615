"""Reuses the memory of batches, instead of asking the system for it each time."""

from __future__ import annotations

from typing import Final

_LARGEST: Final = 16 << 20


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks of up to 16 MiB.

    glibc gives blocks of 128 KiB and more straight back to the system, and the next batch pays for its pages again:
    more than for everything else. But it raises that limit to the size of any larger block that is freed, so one is
    made and freed, untouched.
    """
    bytes(_LARGEST)
