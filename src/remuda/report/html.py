"""HTML that is escaped unless it was made here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

_VOID: Final = frozenset({"meta"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | Iterable["Content"]


def tag(name: str, /, *content: Content, **attributes: str | int | None) -> Markup:
    """An element. `class_` is written `class`, `aria_label` is `aria-label`; attributes that are None are left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{join(*content)}</{name}>")


def join(*content: Content) -> Markup:
    """Several things in a row; plain text is escaped."""
    return Markup("".join(map(_one, content)))


def _one(content: Content) -> str:
    if isinstance(content, Markup):
        return content
    return escape(content) if isinstance(content, str) else join(*content)
