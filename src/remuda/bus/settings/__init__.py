"""Settings and retry policies: where they come from, and which of them holds for a queue."""
