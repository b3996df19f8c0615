"""The Spark rows: reading the log beside Spark's own Parquet reader, and the pipelines over it."""
