"""The live tail: records as checksummed frames in segments, written in batches."""
