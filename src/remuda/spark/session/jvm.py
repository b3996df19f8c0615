"""How Java is started for Spark: its options, and classes that an earlier session has left ready to be loaded."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyspark

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_EXTRA: Final = "spark.driver.extraJavaOptions"
_CLASS_PATH: Final = "spark.driver.extraClassPath"
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_OPTIONS_OF_JAVA: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_OTHER_CLASSES: Final = (
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR",
)  # fmt: skip
"""Where one of these is set, the class path is another and has folders in it, of which Java archives no classes."""
_ROOM: Final = 1 << 30
_RECORDING: Final = 600.0
"""Seconds after which a session that began to record classes has surely ended."""
_UNUSED: Final = 30 * 24 * 3600.0


def java_options(config: Mapping[str, str], classes: ClassArchive | None, *, quick: bool) -> str:
    """The options of a driver: those that suit pipelines, or with `quick` a short command, before the user's own."""
    extra = config.get(_EXTRA, "")
    # A query that is stopped within a batch searches the text of its error by recursion, too deep for a usual stack.
    options = [f"-Dlog4j2.configurationFile=file:{_LOGGING}", "-Xss16m"]
    if not _COLLECTOR.search(" ".join([extra, *(os.environ.get(name, "") for name in _OPTIONS_OF_JAVA)])):
        # Pipelines want throughput, and are not hurt by pauses. To name two collectors would keep Java from starting.
        options.append("-XX:+UseParallelGC")
    if quick:
        options.append("-XX:TieredStopAtLevel=1")
    if classes is not None:
        options += classes.options()
    return f"{' '.join(options)} {extra}".strip()


class ClassArchive:
    """The classes of Spark as Java keeps them to load them at once (AppCDS), in a file of the user's cache.

    It is made by the first session that finds none, when its Java ends, under a name of its own: only one that is whole
    gets the name that sessions look for. That name stands for this Java and these jars, so another version of either
    makes another file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun = None if path.exists() else _place_to_record(path)

    @classmethod
    def of(cls, java: Path, config: Mapping[str, str]) -> ClassArchive | None:
        """That of a Java; None where there can be none."""
        if _CLASS_PATH in config or any(os.environ.get(name) for name in _OTHER_CLASSES):
            return None
        try:
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            folder = Path(home) / "remuda" / "spark"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(folder / f"classes-{_signature(java)}.jsa")
        except (OSError, RuntimeError):
            return None  # a cache that cannot be written, or a user without a home

    @property
    def left(self) -> tuple[Path, Path] | None:
        """Where Java leaves the classes when it ends, and where they belong; None if it is not to."""
        return None if self._begun is None else (self._begun, self.path)

    def options(self) -> list[str]:
        if self._begun is not None:
            used = f"-XX:ArchiveClassesAtExit={self._begun}"
        elif self.path.exists():
            used = f"-XX:SharedArchiveFile={self.path}"
            with contextlib.suppress(OSError):
                os.utime(self.path)
        else:
            return []
        # An archive that does not fit is not used, and silently: Java would say so on standard output.
        return [used, "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def _signature(java: Path) -> str:
    """What distinguishes one Java and its jars from another."""
    known = sha256(str(java.resolve()).encode())
    with contextlib.suppress(OSError):
        known.update((java / "release").read_bytes())
    jars = Path(pyspark.__file__).parent / "jars"
    for entry in sorted(os.scandir(jars), key=lambda entry: entry.name):
        status = entry.stat()
        known.update(f"{entry.path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return known.hexdigest()[:32]


def _place_to_record(path: Path) -> Path | None:
    """Where to record classes; None where another session does, or where there is no room. What is old is removed."""
    now = time.time()
    for other in path.parent.glob("classes-*"):
        with contextlib.suppress(OSError):
            age = now - other.stat().st_mtime
            if age > (_UNUSED if other.suffix == path.suffix else _RECORDING):
                other.unlink()
            elif other.name.startswith(f"{path.name}."):
                return None
    try:
        if shutil.disk_usage(path.parent).free < _ROOM:
            return None
        begun = Path(f"{path}.{os.getpid()}")
        begun.touch()  # so that others see it; Java overwrites it
    except OSError:
        return None
    return begun
