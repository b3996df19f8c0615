"""Locks, forks, interrupts and calls from within calls."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
