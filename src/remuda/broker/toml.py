"""TOML files of settings: every value can be said where it stands, by file and line."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from remuda.model.errors import InvalidOption
from remuda.model.values.texts import shown

_TABLE: Final = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART: Final = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def read_toml(file: str | os.PathLike[str], what: str = "settings file") -> tuple[dict[str, Any], Callable[[str], str]]:
    """The tables of a TOML file, and a function that says where a dotted name stands in it: file and line."""
    path = Path(file)
    try:
        text = path.read_text("utf-8-sig")
        tables = tomllib.loads(text)
    except OSError as error:
        raise InvalidOption(f"the {what} {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the {what} {path} is not valid TOML: {error}") from error
    except ValueError as error:  # a name that no file can have
        raise InvalidOption(f"config must be the path of a TOML file, not {shown(str(path))}: {error}") from error

    def where(name: str) -> str:
        line = _lines(text).get(name)
        return str(path) if line is None else f"{path}, line {line}"

    return tables, where


@lru_cache(8)
def _lines(text: str) -> dict[str, int]:
    """The line of each dotted name in a TOML file. Names within texts of several lines are found too: a line is a help
    to the reader, and no more."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        heading = _TABLE.fullmatch(line)
        if heading is not None:
            table = _dotted(heading[1]) + "."
        elif (key := _KEY.match(line)) is not None:
            lines.setdefault(table + _dotted(key[1]), number)
    return lines


def _dotted(written: str) -> str:
    return ".".join(part.strip("\"'") for part in _PART.findall(written))


def flattened(tables: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The values of nested tables, by their dotted names."""
    rows: list[tuple[str, Any]] = []
    for key, value in tables.items():
        name = f"{prefix}{key}"
        rows += flattened(value, name + ".") if isinstance(value, Mapping) else [(name, value)]
    return rows
