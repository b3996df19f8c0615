"""A Spark session that starts quietly and is set up for Remuda's sources."""

from __future__ import annotations

import contextlib
import os
import site
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from pyspark_remuda import DefaultSource
from remuda.model.errors import Conflict, InvalidOption, RemudaError
from remuda.spark.session.forking import preloaded_python
from remuda.spark.session.java import find_java, write_shim
from remuda.spark.session.jvm import ClassArchive, java_options
from remuda.spark.session.missing_pyspark import SparkMissing

LOCAL: Final = "local[*]"
_ALONE: Final = "local"
"""How the name of a master begins that is this process alone."""
_CONNECT_PORT: Final = 15002
_MASTER_PORT: Final = 7077
_PATIENCE: Final = 10.0
_COMMON: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Else Spark writes times as INT96, which have no time zone, and overflow after 2262 where others read them.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
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
_BY_STREAMS: Final = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What Spark tells the Pythons of streams in their environment, with its own values in place of these."""
NO_CALL_SITES: Final = {"spark.python.sql.dataFrameDebugging.enabled": "false"}
"""Else PySpark notes for each expression which line made it, with half a dozen calls to Java."""
_QUICK: Final = {
    **NO_CALL_SITES,
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
}


class SparkUnreachable(RemudaError, ConnectionError):
    """Nobody answers where Spark should be."""


def start(name: str, *, master: str | None, remote: str | None, quick: bool, config: Mapping[str, str]) -> SparkSession:
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    if remote is not None:
        # A server decides on call sites when it starts.
        return _connect(name, remote, {**_COMMON, **{key: config[key] for key in config if key not in NO_CALL_SITES}})
    running = _running()
    if running is not None:
        other = running.conf.get("spark.master")
        if master not in (None, other):
            raise Conflict(
                f"this process already runs a Spark session on {other}, and can have none on {master} beside it; stop "
                "that one, or start another process"
            )
        add_source(running)
        return running
    where = master or os.environ.get("MASTER") or LOCAL
    here = check_master(where)
    java = find_java()
    settings = {
        **_COMMON,
        **_CLASSIC,
        **(_LOCAL if here else {}),
        **(_QUICK if quick else _parallel(where)),
        **config,
    }
    classes = ClassArchive.of(java, settings)
    settings["spark.driver.extraJavaOptions"] = java_options(settings, classes, quick=quick)
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _launching(java, classes, local=here, alone=where.startswith(_ALONE)):
        spark = builder.getOrCreate()
    # Spark finds the source by itself too; but if any module named `pyspark_…` cannot be imported, it forgets them all.
    add_source(spark)
    return spark


def add_source(spark: SparkSession) -> None:
    """Register the source, for all queries that are loaded from now on."""
    if not is_remote():
        # Of one source, each stream that starts writes these into a map that all of them share, without a lock. Two at
        # once can break it, and no task can be read any more; but not where the keys are there already.
        for name, value in _BY_STREAMS.items():
            spark.sparkContext.environment.setdefault(name, value)
    spark.dataSource.register(DefaultSource)


def check_arguments(name: object, master: object, remote: object, quick: object, config: object) -> None:
    given = {"name": name} | {
        one: value for one, value in (("master", master), ("remote", remote)) if value is not None
    }
    for argument, value in given.items():
        if not isinstance(value, str):
            raise InvalidOption(f"{argument} must be a string, not {value!r}")
    if master is not None and remote is not None:
        raise InvalidOption(f"master {master!r} and remote {remote!r} both say where Spark runs; give one of them")
    if not isinstance(quick, bool):
        raise InvalidOption(f"quick must be true or false, not {quick!r}")
    if config is not None and not (isinstance(config, Mapping) and all(isinstance(key, str) for key in config)):
        raise InvalidOption(f"config must map names of Spark's settings to their values, not {config!r}")


def _running() -> SparkSession | None:
    """The session of this thread, or the one that another began."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def check_session(spark: object) -> None:
    if not all(hasattr(spark, name) for name in ("read", "createDataFrame", "dataSource")):
        raise InvalidOption(f"spark must be a SparkSession, such as remuda.spark.session() gives, not {spark!r}")


def register(spark: SparkSession) -> None:
    """Make the source known to a session that was not started here.

    Spark looks for sources, and reads them, with the Python that `PYSPARK_PYTHON` names, or else with whatever
    `python3` is on the path: that of a virtual environment only if it is activated. Here it can be this Python.
    """
    if _takes_any_python(spark):
        spark.sparkContext.pythonExec = sys.executable
    add_source(spark)


def make_active(spark: SparkSession) -> None:
    """Make a session active in a new thread: calls to Spark use the active one, and a new thread has none."""
    here: Any = spark
    if hasattr(here, "_jsparkSession"):
        here._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(here._jsparkSession)


def ensure_registered(spark: SparkSession) -> None:
    """As `register`, where Spark would not find the source by itself."""
    if _takes_any_python(spark):
        register(spark)


def _takes_any_python(spark: SparkSession) -> bool:
    if is_remote() or "PYSPARK_PYTHON" in os.environ:
        return False
    context = spark.sparkContext
    return context.pythonExec == "python3" and (context.master or "").startswith("local")


def _connect(name: str, remote: str, settings: Mapping[str, str]) -> SparkSession:
    if not all(map(find_spec, ("grpc", "grpc_status", "zstandard"))):
        raise SparkMissing("Spark Connect is an extra: pip install 'remuda[connect]'")
    address = urlsplit(remote)
    if address.scheme != "sc" or address.hostname is None:
        raise InvalidOption(f"a Spark Connect server is given as sc://host:port, not {remote!r}")
    # PySpark itself would try in silence for ten minutes.
    _await_answer(remote, address.hostname, address.port or _CONNECT_PORT)
    builder = SparkSession.builder.appName(name).remote(remote)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "SESSION_ALREADY_EXIST":
            raise
        raise Conflict(
            f"this process already runs a Spark session of its own, and can have none on {remote} beside it; stop that "
            "one, or start another process"
        ) from error
    add_source(spark)
    return spark


def check_master(master: str) -> bool:
    """Whether a master is on this machine alone. Raises if nobody answers there."""
    if master.startswith(_ALONE):
        return True
    if master.startswith("sc://"):
        raise InvalidOption(f"{master!r} is a Spark Connect server, not a master: give it as remote")
    if not master.startswith("spark://"):
        return False
    addresses = [urlsplit(f"spark://{one}") for one in master.removeprefix("spark://").split(",")]
    hosts = [address.hostname or "" for address in addresses]
    if len(addresses) == 1:
        # Spark itself would try for a minute, and then report a context that was stopped.
        _await_answer(master, hosts[0], addresses[0].port or _MASTER_PORT)
    return all(host in ("localhost", "127.0.0.1", "::1") for host in hosts)


def _await_answer(url: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=_PATIENCE).close()
    except OSError as error:
        raise SparkUnreachable(
            f"no Spark answers at {url} ({error}); is it running, and is this its address?"
        ) from None


def _parallel(master: str) -> dict[str, str]:
    """As many parts of a shuffle as there are cores here; a cluster keeps its own measure."""
    return {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1)} if master.startswith("local") else {}


def _has_own_pyspark() -> bool:
    """Whether the Pythons of a local session can import the very PySpark that is in use here."""
    if "SPARK_HOME" in os.environ or os.environ.get("PYSPARK_PYTHON", sys.executable) != sys.executable:
        return False
    return str(Path(pyspark.__file__).parents[1]) in (*site.getsitepackages(), site.getusersitepackages())


@contextlib.contextmanager
def _launching(java: Path, classes: ClassArchive | None, *, local: bool, alone: bool) -> Iterator[None]:
    """What the new JVM and its Python workers find in their environment."""
    own = _has_own_pyspark()
    with tempfile.TemporaryDirectory(prefix="remuda-java-") as folder:
        left = None if classes is None else classes.left
        shim = write_shim(Path(folder) / "home", java, left, own_pyspark=local and own)
        wanted = {"JAVA_HOME": str(shim)}
        # The workers of a local session must be of this Python, or they find none of its packages.
        python = str(preloaded_python()) if alone and own else sys.executable
        wanted["PYSPARK_PYTHON"] = python if own else os.environ.get("PYSPARK_PYTHON", python)
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
