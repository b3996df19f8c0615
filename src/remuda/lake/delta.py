"""The Delta table of a log's sealed files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from remuda.lake.files import GRACE_SECONDS, LEEWAY_SECONDS, DataFile, folder_of
from remuda.lake.metadata import delta_schema
from remuda.model.errors import Conflict
from remuda.spark.lake.delta import LOG, DeltaLog, Version
from remuda.spark.lake.store import Disk
from remuda.spark.lake.versions import LakeFile, Step
from remuda.spark.source.tables import NUMBER, SCHEMAS

_END: Final = "remuda.end"


class DeltaLakehouse:
    """What was read of it is kept until another program makes a version."""

    def __init__(self, root: Path, table: str) -> None:
        self._number = NUMBER[table]
        store = Disk(folder_of(root, table), as_log=True)
        self._log = DeltaLog(store, delta_schema(SCHEMAS[table])["fields"], always=[self._number], name=table)
        self._now: Version

    def refresh(self) -> None:
        self._now = self._log.newest()

    def outdated(self) -> bool:
        return self._log.outdated()

    def listed(self) -> frozenset[str]:
        return frozenset(file.path for file in self._now.files)

    def end(self) -> int:
        return int(self._log.ends.get(_END, 0))

    def commit(self, added: Sequence[DataFile], dropped: Sequence[str], end: int) -> str:
        files = (
            LakeFile(one.path, {}, one.size, one.rows, one.modified, {self._number: (one.first, one.last)})
            for one in added
        )
        gone = tuple(LakeFile(path, {}) for path in dropped)
        if not self._now.commit(Step(added=tuple(files), dropped=gone, told={_END: str(end)})):
            raise Conflict(f"another program has changed the table at {self._log.store.place!r}; publish again")
        self.refresh()
        return self.version()

    def version(self) -> str:
        return str(self._log.number) if self._log.number >= 0 else ""

    def expire(self) -> None:
        """Older versions stay in the log, as after any vacuum, until they are before a checkpoint and a day old."""

    def version_at(self, end: int) -> str | None:
        limit = time.time_ns() // 1_000_000 - (GRACE_SECONDS - LEEWAY_SECONDS) * 1000
        found: int | None = None
        for name in self._log.store.names(LOG):
            if not name.endswith(".json"):
                continue
            version = int(name.removesuffix(".json"))
            actions = self._log.commit_at(version)
            commits = [action["commitInfo"] for action in actions if "commitInfo" in action]
            dropped = any("remove" in action for action in actions)
            if dropped and any(one.get("timestamp", 0) <= limit for one in commits):
                found = None  # the files of all versions before it have gone
            if found is None and any(_END in one and int(one[_END]) >= end for one in commits):
                found = version
        return None if found is None else str(found)
