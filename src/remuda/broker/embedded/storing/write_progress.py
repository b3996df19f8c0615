"""How far that has come on its way to the disk which was recorded since the last time a thread took it to write it.

A broker's standing only rises, with what is recorded and with what goes wrong, until the next thread takes everything.
From `STALLED` it falls when all that waited is written, from `TORN` when the queues are rebuilt. From above it never
falls.
"""

from __future__ import annotations

from typing import Final

# Plain numbers, since they are compared for every message.
WRITTEN: Final = 0
"""All of it is written. The next record is written at once, unless a thread still writes what it took."""
DEFERRED: Final = 1
"""Some of it is written together with the next record, or a little later: nobody waits for it."""
AWAITED: Final = 2
"""Threads wait until it is written: the first of them writes for all."""
AWAITING_SYNC: Final = 3
"""And until it is synced."""
STALLED: Final = 4
"""It cannot be written at present, as when the disk is full. Commands are refused until it is."""
TORN: Final = 5
"""An error may have left the queues half changed: everybody waits until they are rebuilt from the log."""
STOPPED: Final = 6
"""Nothing is written any more: a write failed for good, or the directory is another process's by now."""
CLOSED: Final = 7
"""Nothing but the end is written any more."""
