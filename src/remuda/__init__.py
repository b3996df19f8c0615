"""Remuda: a durable message bus that runs inside your process and grows without a change to your code."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remuda.public import *  # noqa: F403

__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name):
        """Load the public API on first use: a command, or a worker process of Spark, does not need the whole bus."""
        from importlib import import_module
        from importlib.util import find_spec

        if name == "__all__" or not name.startswith("_"):
            names = import_module("remuda.public")
            if name in {"__all__", *names.__all__}:
                globals().update({each: getattr(names, each) for each in ("__all__", *names.__all__)})
                return globals()[name]
            if find_spec(f"remuda.{name}") is not None:
                return import_module(f"remuda.{name}")
        raise AttributeError(f"module 'remuda' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
