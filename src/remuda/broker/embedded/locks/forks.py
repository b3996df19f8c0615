"""A broker belongs to the process that opened it: its copy in a fork of that process is closed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet


class Disownable(Protocol):
    def disown(self) -> None: ...


class Owned:
    """Stands for a host that no weak reference can be made to, as that of a compiled class; it holds on to this."""

    def __init__(self, disown: Callable[[], None]) -> None:
        self.disown = disown


_owned: WeakSet[Disownable] = WeakSet()


def closed_after_fork(host: Disownable) -> None:
    """Have `host` disowned in every process forked from now on."""
    _owned.add(host)


def _disown_all() -> None:
    for host in list(_owned):
        host.disown()
    _owned.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
