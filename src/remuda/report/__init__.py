"""A report on what queues did, as tables on a terminal and as one page with charts.

It is counted in this process, without Spark.
"""

from remuda.report.figures import Report
from remuda.report.page import check_place, render, write_page
from remuda.report.report_request import ReportRequest
from remuda.report.reporting import make_report
from remuda.report.terminal import print_report

__all__ = ["Report", "ReportRequest", "check_place", "make_report", "print_report", "render", "write_page"]
