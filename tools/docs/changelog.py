"""Moves what is in changes/ into CHANGELOG.md, under a version.

python -m tools.docs.changelog 0.2.0
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KINDS: Final = ("added", "changed", "fixed", "removed", "security")
_HERE: Final = "<!-- releases -->\n"


def fragments(folder: Path) -> dict[str, list[str]]:
    """The texts by their kind; raises `ValueError` for a file that is not named as it should be."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.glob("*.md")):
        if path.name == "README.md":
            continue
        kind = path.stem.rpartition(".")[2]
        text = " ".join(path.read_text().split())
        if kind not in KINDS or not text:
            raise ValueError(f"{path.name}: name it <a-few-words>.<{'|'.join(KINDS)}>.md, and say what changes")
        found[kind].append(text)
    return found


def release(root: Path, version: str, day: str) -> None:
    """Write the entry of a version, and remove what it is made of."""
    found = fragments(root / "changes")
    lines = [f"## {version}, {day}", ""]
    for kind, texts in found.items():
        if texts:
            lines += [f"### {kind.capitalize()}", *(f"- {text}" for text in texts), ""]
    page = root / "CHANGELOG.md"
    before, here, after = page.read_text().partition(_HERE)
    page.write_text("\n".join([before + here, *lines]).rstrip() + "\n" + after)
    for path in (root / "changes").glob("*.*.md"):
        path.unlink()


if __name__ == "__main__":
    release(ROOT, sys.argv[1], datetime.now(UTC).date().isoformat())
