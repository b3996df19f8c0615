"""Options of queues, their exchanges and rules."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
