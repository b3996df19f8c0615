"""What the compiler of the hot modules is told about a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**attributes: Any) -> Callable[[type], type]:
        """It reads these in the source; there is nothing to do for them here."""
        return lambda described: described
