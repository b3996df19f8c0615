"""`remuda run --reload`: the app in a child process, restarted whenever a file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

_POLL: Final = 0.3
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Snapshot = dict[str, int]


def run_reloading(arguments: Sequence[str]) -> None:
    """Run `remuda` with these arguments in a child process until a signal arrives."""
    asked: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, receive)
    root = Path.cwd()
    seen = snapshot(root)
    child, ended = _start(arguments), False
    while not asked:
        time.sleep(_POLL)
        now = snapshot(root)
        if changed := sorted(name for name in seen.keys() | now.keys() if seen.get(name) != now.get(name)):
            print(f"{', '.join(changed[:3])} changed; restarting", file=sys.stderr, flush=True)
            seen = now
            _stop(child, asked)
            if not asked:
                child, ended = _start(arguments), False
        elif not ended and child.poll() is not None:
            if child.returncode == 0:
                return
            ended = True
            print("ended; waiting for a file to change", file=sys.stderr, flush=True)
    _stop(child, asked)


def snapshot(root: Path) -> Snapshot:
    """The modification time of each file whose change means a restart."""
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in _sources(root) if path.exists()}


def _sources(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py") or name == "remuda.toml":
                yield Path(folder, name)


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    # In a session of its own, so that Ctrl-C reaches only this process, and the child is asked to stop only once.
    return subprocess.Popen([sys.executable, "-m", "remuda.cli", *arguments], start_new_session=True)


def _stop(child: subprocess.Popen[bytes], asked: Sequence[int]) -> None:
    """Ask the child to stop, and wait. A second signal to this process is passed on."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    passed_on = max(len(asked), 1)
    while child.poll() is None:
        if len(asked) > passed_on:
            child.send_signal(signal.SIGTERM)
            passed_on = len(asked)
        time.sleep(0.02)
