"""The note of the sources that were compiled. It depends on nothing else of Remuda, since it is needed to build it."""

from __future__ import annotations

from hashlib import blake2b
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

NOTE: Final = f"sources{EXTENSION_SUFFIXES[0]}.json" if EXTENSION_SUFFIXES else "sources.json"
"""By path from the folder of `remuda`: size, time of change and digest of each source that was read."""


def digest_of(source: bytes) -> str:
    return blake2b(source, digest_size=16).hexdigest()
