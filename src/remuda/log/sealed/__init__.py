"""Sealed segments: Parquet files, and the indexes and notes beside them."""
