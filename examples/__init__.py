"""Remuda in use: one small file per feature, and a shop that combines them."""
