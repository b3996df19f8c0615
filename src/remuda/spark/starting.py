"""A Spark session that starts quietly and is set up for Remuda's sources."""

from __future__ import annotations

import contextlib
import getpass
import os
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
from remuda.spark.extra import SparkMissing
from remuda.spark.java import find_java, java_version, write_shim
from remuda.spark.lake import TIMES_IN_MICROS

LOCAL: Final = "local[*]"
_CONNECT_PORT: Final = 15002
_MASTER_PORT: Final = 7077
_PATIENCE: Final = 10.0
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_COMMON: Final = {
    "spark.sql.session.timeZone": "UTC",
    **TIMES_IN_MICROS,
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
NO_CALL_SITES: Final = {"spark.python.sql.dataFrameDebugging.enabled": "false"}
"""PySpark notes for each expression which line made it, with half a dozen questions to Java."""
_QUICK: Final = {
    **NO_CALL_SITES,
    "spark.python.daemon.module": "remuda.spark.daemon",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
}


class SparkUnreachable(RemudaError, ConnectionError):
    """Nobody answers where Spark should be."""


def start(name: str, *, master: str | None, remote: str | None, quick: bool, config: Mapping[str, str]) -> SparkSession:
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    if remote is not None:
        # A server has decided on call sites when it began.
        return _connect(name, remote, {**_COMMON, **{key: config[key] for key in config if key not in NO_CALL_SITES}})
    running = SparkSession.getActiveSession()
    if running is not None:
        other = running.conf.get("spark.master")
        if master not in (None, other):
            raise Conflict(
                f"this process already runs a Spark session on {other}, and can have none on {master} beside it; stop "
                "that one, or start another process"
            )
        running.dataSource.register(DefaultSource)
        return running
    where = master or os.environ.get("MASTER") or LOCAL
    here = check_master(where)
    java = find_java()
    options = _java_options(java, quick=quick)
    settings = {
        **_COMMON,
        **_CLASSIC,
        **(_LOCAL if here else {}),
        **(_QUICK if quick else _parallel(where)),
        **config,
    }
    extra = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"{options} {extra}".strip()
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _launching(java, local=here):
        spark = builder.getOrCreate()
    # Spark finds the source by itself too; but if any module named `pyspark_…` cannot be imported, it forgets them all.
    spark.dataSource.register(DefaultSource)
    return spark


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
    spark.dataSource.register(DefaultSource)


def make_active(spark: SparkSession) -> None:
    """In a new thread: what it asks of Spark is asked of the session that is active there, and by itself none is."""
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
    spark.dataSource.register(DefaultSource)
    return spark


def check_master(master: str) -> bool:
    """Whether a master is on this machine alone. Raises if nobody answers there."""
    if master.startswith("local"):
        return True
    if master.startswith("sc://"):
        raise InvalidOption(f"{master!r} is a Spark Connect server, not a master: give it as remote")
    if not master.startswith("spark://"):
        return False
    addresses = [urlsplit(f"spark://{one}") for one in master.removeprefix("spark://").split(",")]
    hosts = [address.hostname or "" for address in addresses]
    if len(addresses) == 1:
        # Spark itself would try for a minute, and then tell of a context that was stopped.
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


def _java_options(java: Path, *, quick: bool) -> str:
    options = [f"-Dlog4j2.configurationFile=file:{_LOGGING}"]
    if quick:
        archive = class_archive(java)
        known = "-XX:SharedArchiveFile" if archive.exists() else "-XX:ArchiveClassesAtExit"
        options += [
            "-XX:TieredStopAtLevel=1",
            f"{known}={archive}",
            "-Xshare:auto",
            "-Xlog:cds=off",
            "-Xlog:cds+dynamic=off",
        ]
    return " ".join(options)


def class_archive(java: Path) -> Path:
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
