"""One queue: what waits, what is in flight and with whom, what is delayed or parked."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
