"""What takes long says on stderr how far it is, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remuda.index.port import Reached

Tell = Callable[[str], None]


@contextmanager
def spinner(first: str, *, quiet: bool = False) -> Iterator[Tell]:
    """Show the current step while it runs."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda step: None
        return
    with console.status(first) as status:
        yield status.update


@contextmanager
def reading(end: int, *, quiet: bool = False) -> Iterator[Callable[[Reached], None]]:
    """Show how far a log that ends at an offset has been read."""
    with spinner("reading the log", quiet=quiet) as tell:
        yield lambda reached: tell(f"reading the log: message {reached.offset:,} of {end:,}")
