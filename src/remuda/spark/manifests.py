"""Versions of a table as manifests: one small file that lists the table's files, put in place whole."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Final

import msgspec

from remuda.spark.versions import LakeFile, Step

_KEPT: Final = 10
PLAIN_READERS: Final = "READ-THIS-TABLE-BY-remuda.lake.read-NOT-AS-A-FOLDER.parquet"
"""A file that makes readers of the folder as plain Parquet fail, with the reason in its name: they would read files of
older versions too."""
_WHY: Final = (
    "This folder holds files of older versions too. The newest manifest under _manifests/ lists those that are the\n"
    "table now, and remuda.lake.read(spark, lake, table) reads them. Any engine can read a lake in the delta format.\n"
)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is written of a version."""

    version: int = 0
    time: float = 0.0
    files: tuple[LakeFile, ...] = ()
    batches: dict[str, int] = {}
    """The last batch of each application, so that none is added twice."""
    dropped: dict[str, float] = {}
    """Files that are no longer part of the table, and since when."""


class Manifests:
    """The manifests of the table in a folder."""

    def __init__(self, root: Path, folders: tuple[str, ...] = ()) -> None:
        self._root = root
        self._folder = root / "_manifests"
        self._folders = folders

    def folders(self) -> tuple[str, ...]:
        return self._folders

    def newest(self) -> ManifestVersion:
        return ManifestVersion(self, self.read())

    def vacuum(self, older_than: float) -> int:
        limit = time.time() - older_than
        while True:
            newest = self.read()
            gone = [path for path, since in newest.dropped.items() if since < limit]
            if not gone:
                return 0
            for path in gone:
                (self._root / path).unlink(missing_ok=True)
            left = {path: since for path, since in newest.dropped.items() if since >= limit}
            if self.put(msgspec.structs.replace(newest, dropped=left)):
                return len(gone)

    def read(self) -> Manifest:
        """The newest one; an empty one before the first commit."""
        while True:
            names = sorted(self._names())
            if not names:
                return Manifest()
            try:
                return msgspec.json.decode((self._folder / names[-1]).read_bytes(), type=Manifest)
            except FileNotFoundError:
                continue  # newer ones came, and this one was the oldest kept

    def put(self, changed: Manifest) -> bool:
        """Make the version that follows; False if there is one already."""
        following = msgspec.structs.replace(changed, version=changed.version + 1, time=time.time())
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._root / PLAIN_READERS).exists():
            (self._root / PLAIN_READERS).write_text(_WHY)
        temporary = self._folder / f"{uuid.uuid4().hex}.tmp"
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(following))
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, unlike a rename, fails where another job has just put the same version.
            os.link(temporary, self._folder / f"{following.version:020d}.json")
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        for name in sorted(self._names())[:-_KEPT]:
            (self._folder / name).unlink(missing_ok=True)
        return True

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.endswith(".json")]
        except FileNotFoundError:
            return []


class ManifestVersion:
    def __init__(self, manifests: Manifests, manifest: Manifest) -> None:
        self._manifests = manifests
        self._manifest = manifest

    @property
    def version(self) -> int:
        return self._manifest.version

    @property
    def files(self) -> tuple[LakeFile, ...]:
        return self._manifest.files

    def last_batch(self, app: str) -> int | None:
        return self._manifest.batches.get(app)

    def commit(self, step: Step) -> bool:
        now = self._manifest
        gone = {file.path for file in step.dropped}
        return self._manifests.put(
            msgspec.structs.replace(
                now,
                files=tuple(file for file in now.files if file.path not in gone) + step.added,
                dropped={**now.dropped, **dict.fromkeys(gone, time.time())},
                batches=now.batches if step.batch is None else {**now.batches, step.batch.app: step.batch.number},
            )
        )
