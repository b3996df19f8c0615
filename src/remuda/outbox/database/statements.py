"""SQL from the `.sql` files, with names filled in and parameters in the style of each driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, Literal

import msgspec

from remuda.outbox.database.table_names import Names

Dialect = Literal["postgres", "sqlite"]
Style = Literal["qmark", "format", "numeric"]

_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT: Final = re.compile(r"--[^\n]*\n")


class Statement(msgspec.Struct, frozen=True):
    """One statement in one driver's style; `order` names its parameters by position."""

    sql: str
    order: tuple[str, ...]

    def values(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple([given[name] for name in self.order])


class Statements:
    """All statements of one dialect, under these names."""

    def __init__(self, dialect: Dialect, names: Names, style: Style) -> None:
        self.dialect = dialect
        self.names = names
        self._style = style
        self._made: dict[tuple[str, str], Statement] = {}

    def __call__(self, name: str, slot: int | str = "") -> Statement:
        known = (name, str(slot))
        if known not in self._made:
            text = _queries(self.dialect)[name].replace("{slot}", str(slot))
            text = text.replace("{current}", _queries(self.dialect).get("current", ""))
            self._made[known] = styled(self.names.fill(text, self.dialect), self._style)
        return self._made[known]


def styled(sql: str, style: Style) -> Statement:
    """A statement with parameters in this style."""
    order: list[str] = []

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if style == "numeric":
            if name not in order:
                order.append(name)
            return f"${order.index(name) + 1}"
        order.append(name)
        return "?" if style == "qmark" else "%s"

    if style == "format":
        sql = sql.replace("%", "%%")
    return Statement(_PARAMETER.sub(put, sql), tuple(order))


@lru_cache
def _queries(dialect: Dialect) -> dict[str, str]:
    found = {}
    for part in _read(dialect, "queries").split("-- name: ")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = _COMMENT.sub("", body).strip()
    return found


@lru_cache
def _read(dialect: Dialect, name: str) -> str:
    return files("remuda.outbox.database").joinpath("sql", dialect, f"{name}.sql").read_text("utf-8")


LATEST: Final = 3
"""The version of the tables that this Remuda works with."""


def restored(names: Names) -> str:
    """The SQL that repairs PostgreSQL's tables after a dump was restored."""
    text = _read("postgres", "restored").replace("{current}", _queries("postgres")["current"])
    return names.fill(text, "postgres")


def migration(dialect: Dialect, names: Names, version: int) -> str:
    """The SQL that upgrades the tables from the previous version to this one."""
    return names.fill(_read(dialect, f"schema_{version}"), dialect)
