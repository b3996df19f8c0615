"""The rules of queues, without I/O, threads or clock: commands and `now` go in, effects come out."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
