"""The broker inside this process: core and log behind a lock, with threads for time, group commit and upkeep."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
