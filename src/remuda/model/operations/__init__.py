"""What can be asked of a broker, and the answers."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
