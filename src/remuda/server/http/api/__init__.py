"""The HTTP API: its table of operations, their types and their handlers."""
