"""The lake: tables of Parquet files in Hive-style partitions, and a manifest that says which files are the table.

A commit is one new manifest, put in place whole. Whoever reads goes by one manifest, so that no write, rewrite or
deletion shows half; files that a manifest has dropped stay for a while, for those who still read by an older one.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from remuda.model.errors import Conflict, InvalidOption
from remuda.spark.port import directory

_MANIFESTS: Final = "_manifests"
_STAGING: Final = "_staging"
_KEPT: Final = 10
_ATTEMPTS: Final = 20
GRACE_SECONDS: Final = 24 * 3600.0


class LakeFile(msgspec.Struct, frozen=True):
    """A file of a table, under the table's folder, and the values of its partition."""

    path: str
    partition: dict[str, str | None]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a table."""

    version: int = 0
    time: float = 0.0
    files: tuple[LakeFile, ...] = ()
    batches: dict[str, int] = {}
    """The last batch of each application, so that none is added twice."""
    dropped: dict[str, float] = {}
    """Files that are no longer of the table, and since when."""


Change = Callable[[Manifest], Manifest | None]
"""From the newest manifest to the next; None when there is nothing to do."""


class LakeTable:
    """A table with a declared schema, of which the last columns are its partitions."""

    def __init__(self, lake: str, name: str, schema: StructType, partitions: tuple[str, ...]) -> None:
        self.root = Path(directory(lake)) / name
        self.schema = schema
        self.partitions = partitions
        missing = [column for column in partitions if column not in schema.fieldNames()]
        if missing:
            raise InvalidOption(f"table {name!r} has no column {missing[0]!r} to be parted by")

    def manifest(self) -> Manifest:
        """The newest version; an empty one before the first commit."""
        while True:
            names = sorted(self._manifest_names())
            if not names:
                return Manifest()
            try:
                return msgspec.json.decode((self.root / _MANIFESTS / names[-1]).read_bytes(), type=Manifest)
            except FileNotFoundError:
                continue  # a newer one came, and this one was the oldest kept

    def read(self, spark: SparkSession, manifest: Manifest | None = None) -> DataFrame:
        """The table as it is now, or as it was. Columns that older files lack are null."""
        files = (manifest or self.manifest()).files
        if not files:
            return spark.createDataFrame([], self.schema)
        paths = [str(self.root / file.path) for file in files]
        return spark.read.schema(self.schema).option("basePath", str(self.root)).parquet(*paths)

    def append(self, frame: DataFrame, *, app: str | None = None, batch: int | None = None) -> bool:
        """Add rows; those of a batch once. False if they are there already."""
        if app is not None and batch is not None and self.manifest().batches.get(app, -1) >= batch:
            return False
        files = self._write(frame)

        def change(newest: Manifest) -> Manifest | None:
            if app is None or batch is None:
                return msgspec.structs.replace(newest, files=newest.files + files)
            if newest.batches.get(app, -1) >= batch:
                return None
            batches = {**newest.batches, app: batch}
            return msgspec.structs.replace(newest, files=newest.files + files, batches=batches)

        if self._commit(change):
            return True
        self._discard(files)
        return False

    def rewrite(
        self,
        spark: SparkSession,
        concerns: Callable[[dict[str, str | None]], bool],
        change: Callable[[DataFrame], DataFrame],
        *,
        app: str | None = None,
        batch: int | None = None,
    ) -> bool:
        """Put other rows in the place of those of some partitions. Raises `Conflict` if they changed meanwhile."""
        before = self.manifest()
        if app is not None and batch is not None and before.batches.get(app, -1) >= batch:
            return False
        old = tuple(file for file in before.files if concerns(file.partition))
        files = self._write(change(self.read(spark, msgspec.structs.replace(before, files=old))))
        gone = {file.path for file in old}

        def replace(newest: Manifest) -> Manifest:
            here = {file.path for file in newest.files if concerns(file.partition)}
            if here != gone:
                self._discard(files)
                raise Conflict(
                    f"table {self.root.name!r} was changed by another job; nothing was written. Run it again"
                )
            kept = tuple(file for file in newest.files if file.path not in gone)
            dropped = {**newest.dropped, **dict.fromkeys(gone, time.time())}
            batches = {**newest.batches, app: batch} if app is not None and batch is not None else newest.batches
            return msgspec.structs.replace(newest, files=kept + files, dropped=dropped, batches=batches)

        return self._commit(replace)

    def drop(self, concerns: Callable[[dict[str, str | None]], bool]) -> int:
        """Take partitions out of the table; how many files that were. They stay readable for older versions."""
        count = 0

        def change(newest: Manifest) -> Manifest | None:
            nonlocal count
            gone = [file.path for file in newest.files if concerns(file.partition)]
            count = len(gone)
            if not gone:
                return None
            kept = tuple(file for file in newest.files if not concerns(file.partition))
            dropped = {**newest.dropped, **dict.fromkeys(gone, time.time())}
            return msgspec.structs.replace(newest, files=kept, dropped=dropped)

        self._commit(change)
        return count

    def vacuum(self, older_than: float = GRACE_SECONDS) -> int:
        """Remove files that were dropped some seconds ago, and what failed jobs left; how many files were dropped."""
        limit = time.time() - older_than
        gone: list[str] = []

        def change(newest: Manifest) -> Manifest | None:
            gone[:] = [path for path, since in newest.dropped.items() if since < limit]
            left = {path: since for path, since in newest.dropped.items() if since >= limit}
            return msgspec.structs.replace(newest, dropped=left) if gone else None

        self._commit(change)
        for path in gone:
            (self.root / path).unlink(missing_ok=True)
        for folder in (self.root / _STAGING).glob("*"):
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)
        return len(gone)

    def _write(self, frame: DataFrame) -> tuple[LakeFile, ...]:
        """Rows as files of the table, which no manifest knows yet."""
        stage = self.root / _STAGING / uuid.uuid4().hex
        columns = [name for name in self.schema.fieldNames() if name not in self.partitions]
        rows = frame.select(*columns, *self.partitions)
        if self.partitions:
            rows = rows.repartition(*self.partitions)
        rows.write.option("compression", "zstd").partitionBy(*self.partitions).parquet(str(stage))
        files = []
        for source in sorted(stage.rglob("*.parquet")):
            place = source.relative_to(stage).parent
            target = place / f"{uuid.uuid4().hex}.parquet"
            (self.root / place).mkdir(parents=True, exist_ok=True)
            os.rename(source, self.root / target)
            files.append(LakeFile(str(target), _partition(place)))
        shutil.rmtree(stage, ignore_errors=True)
        return tuple(files)

    def _discard(self, files: Iterable[LakeFile]) -> None:
        for file in files:
            (self.root / file.path).unlink(missing_ok=True)

    def _commit(self, change: Change) -> bool:
        folder = self.root / _MANIFESTS
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            newest = self.manifest()
            following = change(newest)
            if following is None:
                return False
            following = msgspec.structs.replace(following, version=newest.version + 1, time=time.time())
            temporary = folder / f"{uuid.uuid4().hex}.tmp"
            with open(temporary, "wb") as file:
                file.write(msgspec.json.encode(following))
                file.flush()
                os.fsync(file.fileno())
            try:
                # A link, unlike a rename, fails where another job has just put the same version.
                os.link(temporary, folder / f"{following.version:020d}.json")
            except FileExistsError:
                continue
            finally:
                temporary.unlink()
            for name in sorted(self._manifest_names())[:-_KEPT]:
                (folder / name).unlink(missing_ok=True)
            return True
        raise Conflict(f"table {self.root.name!r} is being written by too many jobs at once; run this one again")

    def _manifest_names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.root / _MANIFESTS) if name.endswith(".json")]
        except FileNotFoundError:
            return []


def _partition(place: Path) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for part in place.parts:
        name, _, value = part.partition("=")
        values[name] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return values
