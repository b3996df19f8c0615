"""Masks secrets in headers, on pages and in the API. Only a consumer that pulls a message gets them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MASK: Final = "••••••"
_SECRET: Final = re.compile(
    r"authorization|cookie|secret|passw(or)?d|passphrase|credential|api[-_.]?key|token($|[-_.])|private[-_.]?key|signature",
    re.IGNORECASE,
)


def masked(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, with the values of those hidden whose names suggest secrets."""
    return {name: MASK if _SECRET.search(name) else value for name, value in headers.items()}


def unmasked(edited: Mapping[str, str], original: Mapping[str, str]) -> dict[str, str]:
    """Edited headers, with the original value wherever a mask was left unchanged."""
    return {
        name: original[name] if value == MASK and name in original else value
        for name, value in edited.items()
        if value != MASK or name in original
    }
