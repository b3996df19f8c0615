"""Background work: timeouts, checkpoints, sealing, retention, the spool."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
