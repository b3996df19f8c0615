"""How deliveries come to their consumers, and which messages wait in memory for them."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
