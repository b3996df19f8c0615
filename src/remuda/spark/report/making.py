"""Making a report, in this process."""

from __future__ import annotations

from remuda.model.errors import InvalidOption
from remuda.spark.report.figures import Report
from remuda.spark.report.windows import parse_window
from remuda.spark.report.wish import Tell, Wish
from remuda.spark.session.missing_pyspark import need_numpy


def make_report(wish: Wish, *, tell: Tell = lambda step: None) -> Report:
    """The report that was asked for."""
    if wish.window != "auto":
        parse_window(wish.window)
    if wish.lake is None and wish.url is None:
        raise InvalidOption("say what to report on: the directory of a log, or a lake")
    need_numpy()
    from remuda.spark.report.gather import gather

    return gather(wish, tell)
