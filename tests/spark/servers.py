"""Spark as others run it: a standalone cluster and a Spark Connect server, on this machine's loopback alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyspark

from remuda.spark.session.java import find_java, write_shim
from remuda.spark.session.jvm import ClassArchive
from tests.spark.plans import INTERPRETED

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_HOME: Final = Path(pyspark.__file__).parent
_PATIENCE: Final = 120.0


class _Program:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def says(self, pattern: str) -> str:
        """Wait until its log says so; the first group."""
        deadline = time.monotonic() + _PATIENCE
        while self._process.poll() is None and time.monotonic() < deadline:
            found = re.search(pattern, self._log.read_text("utf-8", "replace"))
            if found:
                return found[1]
            time.sleep(0.1)
        raise TimeoutError(f"Spark did not say {pattern!r}:\n{self._log.read_text('utf-8', 'replace')[-4000:]}")


@contextlib.contextmanager
def standalone_cluster(folder: Path, python: Path, *, hidden: Path | None = None) -> Iterator[str]:
    """A master, and a worker with room for two executors of one core each; the master's URL. Where the worker looks
    for a `hidden` directory, it finds an empty one."""
    with contextlib.ExitStack() as stack:
        here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        ruler = stack.enter_context(_running(folder / "master", python, "org.apache.spark.deploy.master.Master", *here))
        master = ruler.says(r"Starting Spark master at (spark://\S+)")
        means = ["--cores", "2", "--memory", "2g", "--work-dir", str(folder / "worker")]
        worker = ("org.apache.spark.deploy.worker.Worker", *here, *means, master)
        within = () if hidden is None else without_volume(hidden)
        hand = stack.enter_context(_running(folder / "worker", python, *worker, within=within))
        hand.says(r"Successfully registered with master (\S+)")
        yield master


def without_volume(place: Path) -> tuple[str, ...]:
    """The start of a command that runs as on a host where a volume is not mounted."""
    root = () if os.geteuid() == 0 else ("--map-root-user",)
    return ("unshare", *root, "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(place))


@contextlib.contextmanager
def connect_server(folder: Path, python: Path) -> Iterator[str]:
    """A Spark Connect server with two cores; its URL."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
    }
    command = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    command += ["--driver-java-options", quick_java()]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    submit = "org.apache.spark.deploy.SparkSubmit"
    with _running(folder / "server", python, submit, *command, "spark-internal") as server:
        yield "sc://" + server.says(r"Spark Connect server started at: (\S+)")


def cluster_settings() -> dict[str, str]:
    """What a small cluster has to give."""
    return {
        **INTERPRETED,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": quick_java(),
        "spark.sql.shuffle.partitions": "2",
    }


def quick_java() -> str:
    """With the classes that an earlier session has left ready, if there was one."""
    classes = ClassArchive.of(find_java(), {})
    return " ".join([QUICK_JAVA, *(classes.options() if classes is not None and classes.path.exists() else [])])


@contextlib.contextmanager
def _running(folder: Path, python: Path, name: str, *arguments: str, within: Sequence[str] = ()) -> Iterator[_Program]:
    """One of Spark's programs, ended with all that it started."""
    folder.mkdir(parents=True)
    log = folder / "log"
    environment = {
        **os.environ,
        "JAVA_HOME": str(write_shim(folder / "java", find_java())),
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "640m",
        "SPARK_DAEMON_JAVA_OPTS": quick_java(),
    }
    with open(log, "wb") as output:
        program = subprocess.Popen(
            [*within, _HOME / "bin" / "spark-class", name, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _Program(program, log)
    finally:
        program.terminate()
        try:
            program.wait(60)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
        # Executors and Python workers of a program that was killed are of its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
