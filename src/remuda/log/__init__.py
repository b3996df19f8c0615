"""The event log: a live tail of checksummed frames, sealed Parquet files, checkpoints and readers."""
