"""Arrow without pandas, until something imports pandas.

Before Arrow makes its first array it loads pandas, if that is installed, to know its types: a second of work and tens
of megabytes in every process that reads a log. But an array can be made of pandas' objects only where pandas is loaded
already, and then Arrow is told.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import pyarrow as pa


def defer_pandas() -> None:
    """Hide pandas from Arrow now, and let Arrow know once something imports it."""
    if "pandas" in sys.modules or not hasattr(pa.lib, "_pandas_api"):
        return
    finder = _Pandas()
    sys.meta_path.insert(0, finder)
    pa.scalar(0)  # it looks for pandas now, and never again by itself
    finder.hidden = False


class _Pandas(MetaPathFinder):
    """Hides pandas from the thread in which Arrow looks for it, then waits until something imports it."""

    hidden = True

    def __init__(self) -> None:
        self._looking = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "pandas":
            return None
        if self.hidden and threading.get_ident() == self._looking:
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _PandasLoader(spec.loader)
        return spec


class _PandasLoader(Loader):
    """Loads pandas as its own loader does, and tells Arrow."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        with contextlib.suppress(ImportError):  # one that is too old for Arrow is none to it
            _ = pa.lib._pandas_api.pd
