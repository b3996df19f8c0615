"""Scrubbing: sealed files are held against their checksums, a few at a time, so that damage is known early."""

from __future__ import annotations

from collections import deque

from remuda.log.checksums import is_whole
from remuda.log.log import Log
from remuda.log.segments import MESSAGES_TABLE, SealedFile
from remuda.log.walk import Damage
from remuda.model.errors import StorageError


class Scrub:
    """Looks once through the files that are sealed when it begins, the newest first."""

    def __init__(self, log: Log) -> None:
        self._log = log
        files = log.catalog.files()
        self._left = deque(sorted((*files.messages, *files.events), key=lambda file: file.last, reverse=True))

    @property
    def done(self) -> bool:
        return not self._left

    def run(self, budget: int) -> list[Damage]:
        """Look through files until about so many bytes have been read; what is damaged.

        A file that is larger than what is left of the budget waits, unless it is the first.
        """
        damages: list[Damage] = []
        with self._log.maintenance:  # or a file might be rewritten between two looks
            spent = 0
            while self._left:
                file = self._left[0]
                try:
                    size = self._log.disk.size(file.name)
                    if spent and spent + size > budget:
                        break
                    spent += size
                    if not is_whole(self._log.disk, file.name):
                        damages += self._damaged(file)
                except (FileNotFoundError, StorageError):
                    pass  # collected since; or not to be read now, which whoever needs it is told
                self._left.popleft()
        return damages

    def _damaged(self, file: SealedFile) -> list[Damage]:
        from remuda.log.rebuild import readable_batches
        from remuda.log.sealed import EventTable, MessageTable

        table = (MessageTable if file.table == MESSAGES_TABLE else EventTable)(self._log.disk, file)
        damages: list[Damage] = []
        for _ in readable_batches(self._log.disk, table, file.last + 1, damages):
            pass
        return damages
