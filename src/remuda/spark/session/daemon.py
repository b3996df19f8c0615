"""Spark's Python daemon, with all loaded that reading and writing a log needs: its workers are forks, ready at once.

Spark's own loads nothing before it forks, and every worker then loads everything: a second of work for each, and for
the next one after a task that failed.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import pyspark_remuda  # noqa: F401
import remuda.spark.sink
import remuda.spark.source.directory_log
import remuda.spark.source.documents  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
