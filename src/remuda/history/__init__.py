"""What queues did over the last thirty days, counted from the log and kept in a small file beside it."""

from remuda.model.values.extras import MissingExtra

try:
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
except ImportError as error:
    raise MissingExtra("the history", "server") from error
