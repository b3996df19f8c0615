"""Remuda in use: one small file per capability, and a shop that shows them together."""
