"""Where tables are kept: a directory, or a bucket of an object store. A file is there whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from remuda.model.errors import InvalidOption, StorageError
from remuda.model.values.urls import bucket_url
from remuda.spark.lake.writing import create_file, replace_file
from remuda.spark.session.missing_pyspark import SparkMissing
from remuda.spark.source.spark_log import directory, place_text

_LOGS: Final = ("_delta_log", "_manifests")
_PATIENCE: Final = {"timeout": "60s", "connect_timeout": "5s"}
_RETRIES: Final = {"max_retries": 5}


class Entry(NamedTuple):
    """A file, by its name below the store's place."""

    name: str
    size: int
    modified: float


class Store(Protocol):
    """Files below one place."""

    @property
    def place(self) -> str:
        """The path of the directory, or the URL."""
        ...

    def read(self, name: str) -> bytes:
        """Raises `FileNotFoundError` where there is no such file."""
        ...

    def size(self, name: str) -> int | None:
        """None where there is no such file."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Make a file whose name others may choose too; False where one of them was first."""
        ...

    def replace(self, name: str, data: bytes) -> None: ...

    def remove(self, names: Iterable[str]) -> None:
        """Also where some are gone already."""
        ...

    def names(self, folder: str, since: str = "") -> list[str]:
        """The names of the files in a folder, from one on, in order."""
        ...

    def entries(self, folder: str = "") -> Iterator[Entry]:
        """All files below a folder."""
        ...


def lake_place(lake: object) -> str:
    """A lake's directory as a path, or the URL of its place in an object store, the same for every process."""
    text = place_text(lake)
    return bucket_url(text) or directory(text)


def is_bucket(place: str) -> bool:
    return "://" in place


def table_names(lake: str) -> list[str]:
    """The tables of a lake, in either format."""
    place = lake_place(lake)
    if not is_bucket(place):
        logs = (path.parent.name for log in _LOGS for path in Path(place).glob(f"*/{log}"))
        return sorted({*logs})
    return sorted({one.name.split("/")[0] for one in open_store(place).entries() if f"/{_LOGS[0]}/" in one.name})


def open_store(place: str, *, as_log: bool = False) -> Store:
    """The files at a path or URL. Those in a log's own directory are for whoever may read the log."""
    return Bucket(place) if is_bucket(place) else Disk(Path(place), as_log=as_log)


def local_side(lake: str) -> Path:
    """Where a lake's checkpoints are and what its pipelines note: in the lake; for one in an object store, which Spark
    cannot write without further jars, in a folder of this user's."""
    place = lake_place(lake)
    if not is_bucket(place):
        return Path(place)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = hashlib.sha256(place.encode()).hexdigest()[:16]
    return Path(state) / "remuda" / "lakes" / f"{place.rpartition('/')[2]}-{name}"


def of_log(name: str, log: str | None) -> str:
    """The name of what a pipeline keeps beside a lake, for one of its logs."""
    return name if log is None else f"{name}@{log}"


class Disk:
    """A directory. Files are on the disk before anything refers to them."""

    def __init__(self, root: Path, *, as_log: bool = False) -> None:
        self._root = root
        self._as_log = as_log

    @property
    def place(self) -> str:
        return str(self._root)

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def size(self, name: str) -> int | None:
        try:
            return (self._root / name).stat().st_size
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        return create_file(self._root / name, data, private=self._as_log)

    def replace(self, name: str, data: bytes) -> None:
        replace_file(self._root / name, data, private=self._as_log)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    def names(self, folder: str, since: str = "") -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root / folder) if name >= since)
        except FileNotFoundError:
            return []

    def entries(self, folder: str = "") -> Iterator[Entry]:
        for place, _, names in os.walk(self._root / folder):
            for name in names:
                path = Path(place, name)
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    yield Entry(path.relative_to(self._root).as_posix(), status.st_size, status.st_mtime)


class Bucket:
    """A place in an object store, with credentials from where its tools look for them. A file that must be the first
    of its name is put under that condition, which S3, Google Cloud and Azure hold to."""

    def __init__(self, url: str) -> None:
        self.place = url

    def read(self, name: str) -> bytes:
        import obstore

        with self._said(perhaps_none=True):
            return bytes(obstore.get(self._store, name).bytes())

    def size(self, name: str) -> int | None:
        import obstore

        try:
            with self._said(perhaps_none=True):
                return int(obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._said():
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                # It may be ours: an answer that was lost is asked for again.
                return self.read(name) == data
        return True

    def replace(self, name: str, data: bytes) -> None:
        import obstore

        with self._said():
            obstore.put(self._store, name, data)

    def remove(self, names: Iterable[str]) -> None:
        import obstore

        with self._said():
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._store, name)

    def names(self, folder: str, since: str = "") -> list[str]:
        start = f"{folder}/{since}"
        found = [entry.name for entry in self._listed(folder, start[:-1] if since else None) if entry.name >= start]
        return sorted(name.removeprefix(f"{folder}/") for name in found)

    def entries(self, folder: str = "") -> Iterator[Entry]:
        return self._listed(folder or None, None)

    def _listed(self, folder: str | None, after: str | None) -> Iterator[Entry]:
        import obstore

        with self._said():
            for chunk in obstore.list(self._store, folder, offset=after):
                for one in chunk:
                    yield Entry(one["path"], one["size"], one["last_modified"].timestamp())

    @property
    def _store(self) -> Any:
        return _connected(self.place)

    @contextlib.contextmanager
    def _said(self, *, perhaps_none: bool = False) -> Iterator[None]:
        _connected(self.place)  # or say what to install
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            if perhaps_none and isinstance(error, FileNotFoundError):
                raise
            text = " ".join(str(error).split())[:300]
            raise StorageError(
                f"the object store at {self.place!r} refuses or cannot be reached: {text}. Nothing was committed. "
                "Check the address, the bucket and the credentials (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
                "AWS_REGION, AWS_ENDPOINT_URL)"
            ) from error


_user: list[int] = []
"""The process that uses object stores: what connects them does not outlive a fork."""


def _connected(url: str) -> Any:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise SparkMissing("lakes in object stores are an extra: pip install 'remuda[bucket]'") from error
    if not _user:
        _user.append(os.getpid())
    if os.getpid() != _user[0]:
        raise StorageError(
            f"this process was forked from one that uses {url!r}, whose connections cannot be shared; nothing was "
            "done. Open the lake after the fork, or start the process anew (spawn)"
        )
    return _opened(from_url, url, os.environ.get("AWS_ENDPOINT_URL", ""))


@functools.lru_cache(maxsize=64)
def _opened(from_url: Any, url: str, endpoint: str) -> Any:
    options = {**_PATIENCE, "allow_http": endpoint.startswith("http://")}
    try:
        return from_url(url, client_options=options, retry_config=_RETRIES)
    except Exception as error:
        raise InvalidOption(f"{url!r} cannot be used as a lake: {error}") from error
