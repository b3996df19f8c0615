"""Logs, metrics and traces of what passes through a bus."""
