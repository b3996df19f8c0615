"""What a failure is called: its exception and its place. A thousand failures of one kind are one group."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final, NamedTuple

_EXCEPTION: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Timeout|[A-Z]\w+))(?:: |$)")
_VARYING: Final = re.compile(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|\d+")


class Kind(NamedTuple):
    """The kind of a failure."""

    exception: str
    place: str

    @property
    def key(self) -> str:
        """A short name, the same in every process."""
        return _key(self)


@lru_cache(maxsize=10_000)
def _key(kind: Kind) -> str:
    return hashlib.sha256("\0".join(kind).encode("utf-8", "surrogatepass")).hexdigest()[:12]


@lru_cache(maxsize=2_000)
def kind_of(reason: str, detail: str) -> Kind:
    return Kind(exception_of(reason), place_of(detail))


def exception_of(reason: str) -> str:
    """The exception's name, or the reason without its numbers and quoted words."""
    found = _EXCEPTION.match(reason)
    return found[1] if found else (_VARYING.sub("…", reason)[:80].rstrip(" ,;:") or "no reason given")


def place_of(detail: str) -> str:
    """Where a traceback ends: the last file, line and function."""
    for line in reversed(detail.splitlines()):
        text = line.strip()
        if text.startswith('File "'):
            path, _, rest = text[6:].partition('", line ')
            number, _, function = rest.partition(", in ")
            return f"{path.rpartition('/')[2]}:{number}" + (f" in {function}" if function else "")
    return ""
