"""Making a report."""

from __future__ import annotations

from remuda.model.errors import InvalidOption
from remuda.spark.extra import need_pyspark
from remuda.spark.report.figures import Report
from remuda.spark.report.windows import parse_window
from remuda.spark.report.wish import Tell, Wish, empty


def make_report(
    wish: Wish, *, master: str | None = None, remote: str | None = None, tell: Tell = lambda step: None
) -> Report:
    """The report that is wished for, by the running Spark session or one that suits the size of the log."""
    if wish.window != "auto":
        parse_window(wish.window)
    need_pyspark()
    from remuda.spark import session
    from remuda.spark.report.gather import gather
    from remuda.spark.report.sources import LakeLives, Lives, LogLives
    from remuda.spark.selection import Selection

    lives: Lives
    if wish.lake is not None:
        lives = LakeLives(wish.lake)
    elif wish.url is not None:
        lives = LogLives(wish.url)
    else:
        raise InvalidOption("say what to report on: the directory of a log, or a lake")
    if lives.empty:
        return empty(wish)
    tell("starting Spark")
    spark = session("remuda report", master=master, remote=remote, quick=not lives.many)
    tell("reading the lives of messages")
    return gather(lives.frame(spark, Selection(since=wish.since, until=wish.until)), wish, tell)
