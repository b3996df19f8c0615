"""U1: what comes from others is whole, licensed and small."""

from __future__ import annotations

import hashlib

from remuda.server.http.pages.render import HERE

STATIC = HERE / "static"


def test_vendored_files_are_as_they_were_published() -> None:
    lines = (STATIC / "vendored.txt").read_text().splitlines()[1:]
    assert len(lines) == 3
    for line in lines:
        name, _version, _licence, digest = line.split()
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, name
        assert (STATIC / f"{name.partition('.')[0]}.LICENSE").is_file()


def test_everything_a_browser_loads_is_less_than_150_kb() -> None:
    sizes = [file.stat().st_size for file in STATIC.iterdir() if file.suffix in (".js", ".css", ".svg")]
    assert sum(sizes) < 150_000
