"""Spark looks for modules of this name: `spark.read.format("remuda")` works without registering anything."""

from remuda.spark.source.data_source import RemudaSource


class DefaultSource(RemudaSource):
    """The data source and sink `remuda`."""
