"""The names of the tables: a schema and a prefix."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from remuda.model.errors import InvalidOption

_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,29}")


class Names(msgspec.Struct, frozen=True):
    """Table names begin with `prefix`. In PostgreSQL they are in `schema`; SQLite has no schemas."""

    prefix: str = "remuda_"
    schema: str = "public"

    def __post_init__(self) -> None:
        for name in ("prefix", "schema"):
            value = getattr(self, name)
            if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
                raise InvalidOption(
                    f"{name} must be lower-case letters, digits and underscores, at most 30, not {value!r}"
                )

    @property
    def channel(self) -> str:
        """The channel on which PostgreSQL notifies relays."""
        return f"{self.schema}.{self.prefix}outbox"

    def fill(self, sql: str, dialect: str) -> str:
        """Fill the names into SQL."""
        qualified = f"{self.schema}.{self.prefix}" if dialect == "postgres" else self.prefix
        return (
            sql.replace("{p}", qualified)
            .replace("{n}", self.prefix)
            .replace("{channel}", self.channel)
            .replace("{now}", "((julianday('now') - 2440587.5) * 86400)")
        )
