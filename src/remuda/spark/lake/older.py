"""Lakes of Remuda's older format, whose tables are listed in manifests: read once, to be made Delta."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq

from remuda.model.errors import Conflict
from remuda.spark.lake.store import is_bucket
from remuda.spark.lake.versions import LakeFile, Step

MANIFESTS: Final = "_manifests"
PLAIN_READERS: Final = "READ-THIS-TABLE-BY-remuda.lake.read-NOT-AS-A-FOLDER.parquet"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a table. It is read as any other, and has none that follows."""

    version: int = 0
    files: tuple[LakeFile, ...] = ()
    batches: dict[str, int] = {}
    """The last batch of each application."""
    place: str = ""

    def last_batch(self, app: str) -> int | None:
        return self.batches.get(app)

    def commit(self, step: Step) -> bool:
        lake = Path(self.place).parent
        raise Conflict(
            f"the tables of {str(lake)!r} are of Remuda's older format, which can only be read; nothing was changed. "
            f"Stop its pipelines and make them Delta, in place and without copying a row: remuda lake convert {lake}"
        )


def older_version(place: str) -> Manifest | None:
    """The newest version of a table that has not been made Delta; None of any other."""
    table = Path(place)
    if is_bucket(place) or not (table / MANIFESTS).is_dir() or any(table.glob("_delta_log/*.json")):
        return None
    return newest_manifest(table)


def newest_manifest(table: Path) -> Manifest:
    """The newest version that an older Remuda wrote of a table."""
    names = sorted(path for path in (table / MANIFESTS).glob("*.json"))
    if not names:
        return Manifest()
    found = msgspec.json.decode(names[-1].read_bytes(), type=Manifest)
    return msgspec.structs.replace(found, files=tuple(_measured(table, file) for file in found.files), place=str(table))


def _measured(table: Path, file: LakeFile) -> LakeFile:
    status = (table / file.path).stat()
    return LakeFile(
        file.path, file.partition, status.st_size, pq.read_metadata(table / file.path).num_rows,
        status.st_mtime_ns // 1_000_000,
    )  # fmt: skip
