"""Guests keep a file locked while they live: a host that looks for them while they come does not overlook them (S5)."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from remuda.broker.shared.directory import guest_presence
from remuda.broker.shared.directory.guest_presence import Presence


def looking_first(look: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a host look around between the making of a guest's file and its locking."""
    flock = fcntl.flock

    def looked(handle: int, how: int) -> None:
        monkeypatch.undo()
        look()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", looked)


def test_s5_a_guest_that_comes_while_a_host_looks_around_is_known_to_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = Presence(tmp_path, "guest")
    looking_first(lambda: guest_presence.survey(tmp_path), monkeypatch)
    guest.enter()
    assert guest_presence.lives(tmp_path, "guest")
    assert guest_presence.survey(tmp_path).alive == {"guest"}
    guest.leave()
    assert not guest_presence.lives(tmp_path, "guest")
    assert os.listdir(tmp_path / guest_presence.FOLDER) == []


def test_s5_a_guest_that_is_looked_at_while_it_comes_is_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guest, path = Presence(tmp_path, "guest"), tmp_path / guest_presence.FOLDER / "guest"

    def look() -> None:
        handle = os.open(path, os.O_RDWR)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        threading.Timer(0.1, lambda: os.close(handle)).start()

    looking_first(look, monkeypatch)
    guest.enter()
    assert guest_presence.lives(tmp_path, "guest")
    guest.leave()
