"""Scrubbing: files are compared with their checksums, a few at a time, so that damage is known early.

A restart reads only the tail behind the newest checkpoint; the tail before it is checked here, with the sealed files.
An index of ids that is missing, damaged or another file's is made again.
"""

from __future__ import annotations

from collections import deque

from remuda.log.log import Log
from remuda.log.repair.recovery import Passage
from remuda.log.sealed import id_index
from remuda.log.sealed.checksums import is_whole
from remuda.log.segments import MESSAGES_TABLE, SealedFile
from remuda.log.tail.record_scan import Damage
from remuda.model.errors import StorageError
from remuda.model.values.extras import has_arrow


class Scrub:
    """Checks once the files that exist when it begins and were not read yet, the newest first."""

    def __init__(self, log: Log) -> None:
        self._log = log
        files = log.catalog.files()
        sealed = sorted((*files.messages, *files.events), key=lambda file: file.last, reverse=True)
        self._left: deque[Passage | SealedFile] = deque([*reversed(log.unread), *sealed])

    @property
    def done(self) -> bool:
        return not self._left

    def run(self, budget: int) -> list[Damage]:
        """Check files until about `budget` bytes have been read; returns what is damaged.

        A file that is larger than what is left of the budget waits, unless it is the first.
        """
        damages: list[Damage] = []
        with self._log.maintenance:  # or a file might be rewritten between two looks
            spent = 0
            while self._left:
                file = self._left[0]
                try:
                    size = file.size if isinstance(file, Passage) else self._log.disk.size(file.name)
                    if spent and spent + size > budget:
                        break
                    spent += size
                    if isinstance(file, Passage):
                        damages += file.damages(self._log.disk)
                    elif not is_whole(self._log.disk, file.name):
                        damages += self._damaged(file)
                    elif file.table == MESSAGES_TABLE and has_arrow() and not id_index.usable(self._log.disk, file):
                        from remuda.log.repair.rebuild import index_ids

                        index_ids(self._log.disk, file)
                except (FileNotFoundError, StorageError):
                    pass  # collected since; or unreadable for now, and readers that need it get the error
                self._left.popleft()
        return damages

    def _damaged(self, file: SealedFile) -> list[Damage]:
        from remuda.log.repair.rebuild import readable_batches
        from remuda.log.sealed.sealed_table import EventTable, MessageTable

        table = (MessageTable if file.table == MESSAGES_TABLE else EventTable)(self._log.disk, file)
        damages: list[Damage] = []
        for _ in readable_batches(self._log.disk, table, file.last + 1, damages):
            pass
        return damages if table.sealed_as is None else [self._without_others(file, damage) for damage in damages]

    def _without_others(self, file: SealedFile, damage: Damage) -> Damage:
        """Leave out rows that other files hold: a file under a wrong name does not stand in for them."""
        files = self._log.catalog.files()
        if file.table != MESSAGES_TABLE or damage.messages is None:
            return damage
        lost = damage.messages
        for first, stop in (
            *((other.first, other.last + 1) for other in files.messages if other != file),
            *((one.first.offset, lost.stop) for one in files.tail[:1]),
        ):
            if first <= lost.start < stop:
                lost = range(min(stop, lost.stop), lost.stop)
            elif lost.start < first < lost.stop <= stop:
                lost = range(lost.start, first)
        return damage._replace(messages=lost or None)
