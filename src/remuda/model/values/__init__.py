"""Values as people write them: texts, durations, options, addresses."""

from remuda.native import compiled

__path__[:0] = compiled.folders(__name__)
