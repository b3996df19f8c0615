"""Making a report, in this process."""

from __future__ import annotations

from remuda.model.errors import InvalidOption
from remuda.model.values.durations import parse_window
from remuda.report.figures import Report
from remuda.report.report_request import ReportRequest, Tell
from remuda.spark.session.missing_pyspark import need_numpy


def make_report(request: ReportRequest, *, tell: Tell = lambda step: None) -> Report:
    """The report that was asked for."""
    if request.window != "auto":
        parse_window(request.window)
    if request.lake is None and request.url is None:
        raise InvalidOption("say what to report on: the directory of a log, or a lake")
    need_numpy()
    from remuda.report.collecting import gather

    return gather(request, tell)
