"""Writes docs/spec.md: each row of docs/contract.toml, with the tests that cite it.

    python -m tools.docs.spec

A test cites a row in its name (`test_q7_…`) or in its docstring (`Q7`).
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
CONTRACT: Final = ROOT / "docs/contract.toml"
TARGET: Final = ROOT / "docs/spec.md"
_SHOWN: Final = 4
"""The files named for a row: those that cite it most."""
_HEAD: Final = """# What Remuda promises

This is the contract, row by row. A test cites the row it proves by its number, in its name or its docstring, so
`grep -rniE 'q7' tests` finds the proof of Q7. The files that cite a row most are named beside it.

To change a promise, change `docs/contract.toml` and run `make docs`, which writes this page.
"""


class Row(NamedTuple):
    id: str
    text: str


def contract() -> dict[str, tuple[str, list[Row]]]:
    """The sections by their letter: a title, and rows."""
    sections = tomllib.loads(CONTRACT.read_text())
    return {
        letter: (section.pop("title"), [Row(id, text) for id, text in section.items()])
        for letter, section in sections.items()
    }


def citations() -> dict[str, Counter[str]]:
    """For each row, how often each test file cites it."""
    known = {row.id for _, rows in contract().values() for row in rows}
    found: dict[str, Counter[str]] = {id: Counter() for id in known}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for id in _cited(path.read_text()):
            if id in known:
                found[id][name] += 1
    return found


def _cited(source: str) -> list[str]:
    cited: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            cited += (id.upper() for id in re.findall(r"(?<=_)[a-z]\d{1,2}(?=_|$)", node.name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            cited += re.findall(r"\b[A-Z]\d{1,2}\b", ast.get_docstring(node) or "")
    return cited


def page() -> str:
    """The whole page."""
    cited = citations()
    lines = [_HEAD]
    for letter, (title, rows) in contract().items():
        lines += [f"## {letter}. {title}", "", "| row | promise | proved in |", "|---|---|---|"]
        for row in rows:
            files = [name for name, _ in sorted(cited[row.id].items(), key=lambda one: (-one[1], one[0]))]
            named = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in files[:_SHOWN])
            more = f"<br>and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
            text = row.text.replace("|", "\\|")
            lines.append(f"| {row.id} | {text} | {named}{more or ('' if named else 'not yet')} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(page())
