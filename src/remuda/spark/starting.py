"""A Spark session that starts quietly and is set up for Remuda's sources."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from pyspark_remuda import DefaultSource
from remuda.spark.extra import SparkMissing
from remuda.spark.java import find_java, java_version, write_shim

LOCAL: Final = "local[*]"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_COMMON: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Renaming is atomic on a local disk, and saves most of the price of a small micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_CLASSIC: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_QUICK: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
}


def start(name: str, *, master: str | None, remote: str | None, quick: bool, config: Mapping[str, str]) -> SparkSession:
    if remote is not None:
        return _connect(name, remote, {**_COMMON, **config})
    if SparkSession.getActiveSession() is not None:
        return SparkSession.builder.getOrCreate()
    where = master or os.environ.get("MASTER") or LOCAL
    java = find_java()
    options = _java_options(java, quick=quick)
    settings = {
        **_COMMON,
        **_CLASSIC,
        **(_LOCAL if where.startswith("local") else {}),
        **(_QUICK if quick else _parallel(where)),
        **config,
    }
    extra = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"{options} {extra}".strip()
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _launching(java, local=where.startswith("local")):
        spark = builder.getOrCreate()
    # Spark finds the source by itself too, but looks once, and a look that fails under load is not repeated.
    spark.dataSource.register(DefaultSource)
    return spark


def _connect(name: str, remote: str, settings: Mapping[str, str]) -> SparkSession:
    try:
        builder = SparkSession.builder.appName(name).remote(remote)
        for key, value in settings.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    except ImportError as error:
        raise SparkMissing(f"Spark Connect needs more: pip install 'pyspark[connect]' ({error})") from error


def _parallel(master: str) -> dict[str, str]:
    """As many parts of a shuffle as there are cores here; a cluster keeps its own measure."""
    return {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1)} if master.startswith("local") else {}


def _java_options(java: Path, *, quick: bool) -> str:
    options = [f"-Dlog4j2.configurationFile=file:{_LOGGING}"]
    if quick:
        archive = _archive(java)
        known = "-XX:SharedArchiveFile" if archive.exists() else "-XX:ArchiveClassesAtExit"
        options += [
            "-XX:TieredStopAtLevel=1",
            f"{known}={archive}",
            "-Xshare:auto",
            "-Xlog:cds=off",
            "-Xlog:cds+dynamic=off",
        ]
    return " ".join(options)


def _archive(java: Path) -> Path:
    """Where the classes that the last quick session loaded are kept, ready for the next one."""
    folder = Path(tempfile.gettempdir()) / f"remuda-spark-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    where = "".join(
        letter if letter.isalnum() else "-" for letter in f"{Path(pyspark.__file__).parent}{java.resolve()}"
    )
    return folder / f"{java_version(java)}{where}.jsa"[-200:]


@contextlib.contextmanager
def _launching(java: Path, *, local: bool) -> Iterator[None]:
    """What the new JVM and its Python workers find in their environment."""
    with tempfile.TemporaryDirectory(prefix="remuda-java-") as folder:
        wanted = {"JAVA_HOME": str(write_shim(Path(folder) / "home", java))}
        # The workers of a local session must be of this Python, or they find none of its packages.
        wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
        if local:
            wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
        before = {key: os.environ.get(key) for key in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value
