"""What the Spark rows share: one session and the logs, made when a row first needs them."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.scratch import scratch
from benchmarks.spark import logs
from benchmarks.spark.logs import Lived
from benchmarks.spark.meter import can_measure
from remuda.spark import read, session
from remuda.spark.session.java import JavaMissing
from remuda.spark.session.missing_pyspark import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[2]"


class NotHere(Exception):
    """The Spark rows cannot be measured on this machine."""


class Stage:
    """Holds everything until it is closed; used again, it begins anew."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._root: Path | None = None
        self._spark: SparkSession | None = None
        self._lives: dict[Path, Lived] = {}
        self._cold = True

    def start(self) -> None:
        """Start the session, as pipelines have it: with the JVM's best compiler, and adaptive plans."""
        if self._spark is not None:
            return
        if not can_measure():
            raise NotHere("CPU seconds are read from /proc, which this system does not have")
        try:
            self._spark = session("remuda benchmarks", master=MASTER)
        except (SparkMissing, JavaMissing) as missing:
            raise NotHere(str(missing)) from missing
        self._held.callback(self._spark.stop)

    @property
    def spark(self) -> SparkSession:
        self.start()
        assert self._spark is not None
        return self._spark

    def rounds_to_warm_up(self) -> int:
        """One, so that each side has been compiled; one more for who comes first, whose JVM is cold."""
        first, self._cold = self._cold, False
        return 2 if first else 1

    def waiting(self, count: int) -> Path:
        """A log of messages that wait."""
        path = self._scratch / f"waiting-{count}"
        if not path.exists():
            logs.fill(path, count)
        return path

    def lived(self, events: int) -> tuple[Path, Lived]:
        """A log of messages that lived, and how much happened in it."""
        path = self._scratch / f"lived-{events}"
        if path not in self._lives:
            self._lives[path] = logs.live(path, events)
        return path, self._lives[path]

    def told(self, count: int) -> Path:
        """A log of messages that tell of objects, each of them twice."""
        path = self._scratch / f"told-{count}"
        if not path.exists():
            logs.tell(path, count)
        return path

    def copied(self, count: int) -> Path:
        """The rows of `waiting` as Spark itself writes them."""
        return self.copy(self.waiting(count), "messages")

    def copy(self, log: Path, table: str) -> Path:
        """A table of a log as Spark itself writes it."""
        path = self._scratch / f"{log.name}-{table}"
        if not path.exists():
            read(self.spark, log, table).write.option("compression", "zstd").parquet(str(path))
        return path

    def in_files(self, count: int) -> Path:
        """A log of so many sealed files of messages, each small."""
        path = self._scratch / f"files-{count}"
        if not path.exists():
            logs.fill_files(path, count)
        return path

    def folder(self) -> AbstractContextManager[Path]:
        """An empty one, gone when it is left."""
        return scratch()

    def close(self) -> None:
        self._held.close()
        self._root = self._spark = None
        self._lives.clear()
        self._cold = True

    @property
    def _scratch(self) -> Path:
        if self._root is None:
            self._root = self._held.enter_context(scratch())
        return self._root
