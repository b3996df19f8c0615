"""The core and the embedded broker, compiled from their own source, where that could be done.

`hatch_build.py` compiles them, all at once, into modules below this package, and notes the sources it read. A module is
taken from here only while each of these is unchanged; after an edit all of them are played from source, until they are
compiled again (`make` does). `REMUDA_PURE=1` in the environment turns them off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from typing import Final

from remuda import native
from remuda.native.compiled.note import NOTE, digest_of

HERE: Final = os.path.dirname(__file__)


def folders(package: str) -> list[str]:
    """Where a package looks for its modules first."""
    return [os.path.join(HERE, package.removeprefix("remuda."))] if state() == "used" else []


@cache
def state() -> str:
    """`used`; or `off`, `absent`, or which source is newer than what was compiled."""
    if os.environ.get("REMUDA_PURE", "0") != "0":
        return "off"
    if native.mutex is None:  # a second interpreter of this process, too, does without: the first one has it all
        return "absent"
    try:
        with open(os.path.join(HERE, NOTE), "rb") as file:
            noted: dict[str, tuple[int, int, str]] = json.load(file)
    except (OSError, ValueError):
        return "absent"
    changed = next(_changed(noted), None)
    return "used" if changed is None else f"stale: {changed} changed"


def _changed(noted: dict[str, tuple[int, int, str]]) -> Iterator[str]:
    top = os.path.dirname(os.path.dirname(HERE))
    for name, (size, time, digest) in noted.items():
        path = os.path.join(top, name)
        try:
            found = os.stat(path)
            if (found.st_size, found.st_mtime_ns) == (size, time):
                continue
            with open(path, "rb") as file:  # a copy, or another time of the same: what is in it decides
                if digest_of(file.read()) != digest:
                    yield name
        except OSError:
            yield name
