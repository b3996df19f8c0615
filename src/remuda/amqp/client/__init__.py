"""A client that batches confirms and acknowledgements, and survives its connection."""
