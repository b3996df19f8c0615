"""Messages, states, topics, options and records: frozen values with no behaviour beyond their own rules."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
