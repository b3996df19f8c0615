"""The core's state as bytes, and the replay of the log on top of it."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
