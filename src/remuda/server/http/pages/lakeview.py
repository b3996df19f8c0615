"""Pipelines as the dashboard shows them, without Spark: their progress, the lake's tables, points for charts."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from remuda.model.values.urls import parse_url
from remuda.spark.lake.coverage import newest
from remuda.spark.progress import progress

_POINTS: Final = 500
_COUNTS: Final = ("published", "succeeded", "dead")
_TIMES: Final = ("wait_p95", "processing_p95")
_COLUMNS: Final = ["start", "queue", *_COUNTS, *_TIMES]


class Pipeline(msgspec.Struct, frozen=True):
    """A pipeline that follows the log."""

    name: str
    batches: int
    behind: int
    last: int | None
    """When its last batch was done, in microseconds."""


class LakeTableView(msgspec.Struct, frozen=True):
    """A table of the lake as it is now."""

    name: str
    version: int
    files: int
    size: int
    changed: int | None


class LakeView:
    """The lake beside a bus; only read, never written."""

    def __init__(self, url: str | PathLike[str], lake: str) -> None:
        parsed = parse_url(url)
        self._directory = parsed.path if parsed.is_directory else None
        self.lake = Path(lake)

    @property
    def exists(self) -> bool:
        return self.lake.is_dir()

    def pipelines(self) -> list[Pipeline]:
        if self._directory is None or not self.exists:
            return []
        found = []
        for row in progress(self._directory, str(self.lake)):
            commits = self.lake / "_checkpoints" / row["pipeline"] / "commits"
            last = max((path.stat().st_mtime_ns // 1000 for path in commits.glob("[0-9]*")), default=None)
            found.append(Pipeline(row["pipeline"], row["batches"], row["behind"], last))
        return found

    def tables(self) -> list[LakeTableView]:
        """The tables by name, in Remuda's own format or in Delta's."""
        found = []
        for folder in sorted(self.lake.glob("*")) if self.exists else ():
            commits = sorted((*folder.glob("_delta_log/[0-9]*.json"), *folder.glob("_manifests/[0-9]*.json")))
            if commits:
                table = newest(str(self.lake), folder.name)
                sizes = [file.size for file in table.files]
                changed = commits[-1].stat().st_mtime_ns // 1000
                found.append(LakeTableView(folder.name, table.version, len(sizes), sum(sizes), changed))
        return found

    def windows(self, table: str, queue: str | None) -> dict[str, Any]:
        """The newest windows of a metrics table as points, for one queue or for all together."""
        names = [one.name for one in self.tables() if one.name.startswith("metrics")]
        files = self._files(self.lake / table) if table in names else []
        empty: dict[str, Any] = {"times": [], "counts": {}, "latency": {}, "queues": []}
        if not files:
            return empty
        rows = ds.dataset(files, format="parquet").to_table(columns=_COLUMNS)
        queues = sorted(name for name in pc.unique(rows["queue"]).to_pylist() if name is not None)
        if queue is not None:
            rows = rows.filter(pc.equal(rows["queue"], queue))
        sums = rows.group_by("start").aggregate(
            [(name, "sum") for name in _COUNTS] + [(name, "max") for name in _TIMES]
        )
        sums = sums.sort_by("start").slice(max(sums.num_rows - _POINTS, 0))
        return {
            "times": [
                round(time / 1e6, 2) for time in sums["start"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
            ],
            "counts": {name: sums[f"{name}_sum"].to_pylist() for name in _COUNTS},
            "latency": {f"{name[:-4]} p95": sums[f"{name}_max"].to_pylist() for name in _TIMES},
            "queues": queues[:1000],
        }

    def _files(self, folder: Path) -> list[str]:
        return [str(folder / file.path) for file in newest(str(self.lake), folder.name).files]
