"""What mkdocs adds to the pages in docs/: the front page and three more from the top of the repository, and the
references."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

from tools.docs import surface

ROOT: Final = Path(__file__).resolve().parents[2]
_FROM_TOP: Final = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
_ELSEWHERE: Final = "src|tests|examples|benchmarks|tools|changes|LICENSE"


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs with the files of docs/."""
    made = {page: _from_top(ROOT / source) for page, source in _FROM_TOP.items()}
    made["reference/python.md"] = surface.reference()
    made["reference/commands.md"] = surface.commands()
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Links to the repository itself, which a site has no page for, become plain text; what the tests are told about
    a snippet goes."""
    markdown = re.sub(r"^```(\w+) .*$", r"```\1", markdown, flags=re.MULTILINE)
    return re.sub(rf"\[([^\]]+)\]\((?:\.\./)+(?:{_ELSEWHERE})[^)]*\)", r"\1", markdown)


def _from_top(source: Path) -> str:
    """A page as seen from docs/."""
    text = source.read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    for page, name in _FROM_TOP.items():
        text = text.replace(f"]({name})", f"]({page})")
    return re.sub(rf"\[([^\]]+)\]\((?:{_ELSEWHERE})[^)]*\)", r"\1", text)
