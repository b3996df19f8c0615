"""Rules of a queue for order, concurrency, rate and fairness per key (F1-F7)."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
