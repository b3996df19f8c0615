"""Settings and retry policies: where they come from, and which apply to a queue."""
