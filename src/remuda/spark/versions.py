"""What a format must offer to be the lake's: tables of files, version after version."""

from __future__ import annotations

from typing import Protocol

import msgspec


class LakeFile(msgspec.Struct, frozen=True):
    """A file of a table, under the table's folder, and the values of its partition."""

    path: str
    partition: dict[str, str | None]


class Batch(msgspec.Struct, frozen=True):
    """A batch of an application, which numbers its batches upwards."""

    app: str
    number: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From one version to the next."""

    added: tuple[LakeFile, ...] = ()
    dropped: tuple[LakeFile, ...] = ()
    batch: Batch | None = None


class Version(Protocol):
    """A table as it is at one moment."""

    @property
    def version(self) -> int:
        """How many commits came so far."""
        ...

    @property
    def files(self) -> tuple[LakeFile, ...]: ...

    def last_batch(self, app: str) -> int | None:
        """The number of the last batch of an application; None if there was none."""
        ...

    def commit(self, step: Step) -> bool:
        """Make the next version, in one step; False if another job has just made it, and nothing is changed."""
        ...


class Versions(Protocol):
    """All versions of a table that are kept. Files that were dropped stay for readers of an older one."""

    def folders(self) -> tuple[str, ...]:
        """The columns whose values are in the names of folders, and not in the files."""
        ...

    def newest(self) -> Version: ...

    def vacuum(self, older_than: float) -> int:
        """Remove files that were dropped `older_than` seconds ago; returns how many."""
        ...
