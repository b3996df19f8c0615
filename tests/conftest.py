"""One Spark session, one RabbitMQ and one OpenSearch for all tests of a process, started by the first that needs them;
tests that want a process to themselves; and the quick ones, which need neither a server nor patience."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree
from zlib import crc32

import pytest

from remuda.native import compiled
from remuda.spark.session.java import JavaMissing
from tests.servers.fixtures import broker_url, clean_url, janitor, rabbit
from tests.servers.opensearch import opensearch
from tests.spark.plans import INTERPRETED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker_url", "clean_url", "janitor", "opensearch", "rabbit"]

_LONGEST: Final = (
    "tests/spark/test_connect.py", "tests/faults/test_rabbitmq_cluster.py", "tests/spark/test_cluster.py",
    "tests/index/test_kill.py", "tests/spark/", "tests/simulation/", "tests/worker/", "tests/core/test_machine.py",
)  # fmt: skip
_SHORTEST: Final = ("tests/bus/test_", "tests/core/", "tests/model/")
_QUICK: Final = (
    "tests/model/", "tests/core/", "tests/log/", "tests/amqp/", "tests/broker/test_embedded_conformance.py",
    "tests/bus/test_", "tests/simulation/test_quick.py",
)  # fmt: skip
"""Where `--quick` looks; the rest is not even collected."""
_PATIENT: Final = {
    "tests/bus": {"executors", "processes", "timeouts", "signals", "names", "stopping", "leases", "applications"},
    "tests/log/tail": {"native", "native_errors", "twins"},
    "tests/log/sealed": {"seal", "lazy_pandas"},
    "tests/log/readers": {"reader", "finder"},
    "tests/log/repair": {"recovery", "formats"},
}
"""Files there that wait, or start processes."""
_SERVERS: Final = {"rabbit", "one_spark", "opensearch"}
"""Fixtures that start a server, which is no quick thing."""
_MARKS: Final = ("alone", "faults", "slow")
_REPEATED: Final = {
    "tests/broker/test_embedded_conformance.py": "asyncio",
    "tests/broker/test_guest_conformance.py": "tcp",
}
"""Faces that differ from another one of their file in how they wait only. They play a sample of the suite, and all of
it with `--all`."""
_SAMPLE: Final = 4
_SKIPPED: Final = "skipped: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="everything on every face, also where a sample is usual, and what is thorough",
    )
    parser.addoption("--quick", action="store_true", help="only what needs no server, JVM or browser, in a minute")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("quick"):
        return None
    place = collection_path.relative_to(config.rootpath).as_posix()
    if collection_path.is_dir():
        return None if any(f"{place}/".startswith(one) or one.startswith(f"{place}/") for one in _QUICK) else True
    patient = collection_path.stem.removeprefix("test_") in _PATIENT.get(place.rpartition("/")[0], ())
    return True if patient or not place.startswith(_QUICK) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take longest come first and those of seconds last, so that no process is left alone at the end."""
    if config.getoption("quick"):
        items[:] = [item for item in items if _is_quick(item)]
    if not config.getoption("all"):
        config.hook.pytest_deselected(items=[item for item in items if not _is_in_sample(item)])
        items[:] = [item for item in items if _is_in_sample(item)]

    def place(item: pytest.Item) -> int:
        among = (rank for rank, name in enumerate(_LONGEST) if item.nodeid.startswith(name))
        return next(among, len(_LONGEST) + item.nodeid.startswith(_SHORTEST))

    items.sort(key=place)


def _is_quick(item: pytest.Item) -> bool:
    return not _SERVERS & set(getattr(item, "fixturenames", ())) and not any(map(item.get_closest_marker, _MARKS))


def _is_in_sample(item: pytest.Item) -> bool:
    if item.get_closest_marker("thorough") is not None:
        return False
    if (call := getattr(item, "callspec", None)) is None:
        return True
    if call.params.get("backend") != _REPEATED.get(item.nodeid.partition("::")[0], ""):
        return True
    return crc32(item.nodeid.encode()) % _SAMPLE == 0


@pytest.fixture(scope="session")
def one_spark() -> Iterator[SparkSession]:
    from remuda.spark import session

    try:
        spark = session("remuda tests", master="local[2]", quick=True, config=INTERPRETED)
    except JavaMissing as missing:
        pytest.skip(str(missing))
    yield spark
    spark.stop()


@pytest.fixture
def spark(one_spark: SparkSession) -> SparkSession:
    """The session as it was begun: a query of an earlier test may have left a copy of it as the active one."""
    from pyspark_remuda import DefaultSource
    from remuda.spark.session.starting import make_active

    type(one_spark)._activeSession = one_spark  # for Python
    make_active(one_spark)  # for Java
    one_spark.dataSource.register(DefaultSource)
    return one_spark


def pytest_report_header() -> str:
    return f"compiled modules: {compiled.state()}"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test marked `alone` runs in a process of its own: one that counts calls crashes Python where threads and
    greenlets of other libraries are about. Those of a file that are marked `source` run together in another process,
    in Python alone: they replace parts, or interrupt between two lines, of what is compiled."""
    if pyfuncitem.get_closest_marker("source") is not None and compiled.state() == "used":
        trouble = _played_from_source(pyfuncitem.path).get(pyfuncitem.name, "it was not played from source")
        if trouble.startswith(_SKIPPED):
            pytest.skip(trouble.removeprefix(_SKIPPED))
        assert not trouble, trouble
        return True
    if pyfuncitem.get_closest_marker("alone") is None or "REMUDA_ALONE" in os.environ:
        return None
    done = _pytest(pyfuncitem.nodeid, seconds=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return True


@cache
def _played_from_source(path: Path) -> dict[str, str]:
    """What was wrong with each marked test of a file; nothing with those that passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        done = _pytest(str(path), "-m", "source", f"--junitxml={report}", seconds=290, REMUDA_PURE="1")
        assert report.exists(), done.stdout + done.stderr
        cases = ElementTree.parse(report).iter("testcase")
    return {str(case.get("name")): _trouble(case) for case in cases}


def _trouble(case: ElementTree.Element) -> str:
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return found.text or str(found.get("message", kind))
    skipped = case.find("skipped")
    return "" if skipped is None else f"{_SKIPPED}{skipped.get('message', '')}"


def _pytest(*arguments: str, seconds: int, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", *arguments],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "REMUDA_ALONE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
