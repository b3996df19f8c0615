"""Logs, metrics and traces of a bus."""
