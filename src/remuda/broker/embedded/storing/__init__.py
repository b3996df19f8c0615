"""How decisions come to the disk: in order, in groups, and who waits for it."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
