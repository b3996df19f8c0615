"""Making a report."""

from __future__ import annotations

from typing import Final

from remuda.model.errors import InvalidOption
from remuda.spark.report import limits
from remuda.spark.report.figures import Report
from remuda.spark.report.windows import parse_window
from remuda.spark.report.wish import Tell, Wish, empty
from remuda.spark.session.missing_pyspark import need_numpy, need_pyspark

ENGINES: Final = ("auto", "here", "spark")


def make_report(
    wish: Wish,
    *,
    engine: str = "auto",
    master: str | None = None,
    remote: str | None = None,
    tell: Tell = lambda step: None,
) -> Report:
    """The report that was asked for: counted `here`, in this process, or by `spark`; `auto` counts small logs here.

    Spark is the running session, the one that is named, or one that suits the size of the log.
    """
    if engine not in ENGINES:
        raise InvalidOption(f"the engine is one of {', '.join(ENGINES)}, not {engine!r}")
    if wish.window != "auto":
        parse_window(wish.window)
    if engine == "here" or (engine == "auto" and master is None and remote is None and _is_small(wish)):
        return _here(wish, tell)
    need_pyspark()
    from remuda.spark import session
    from remuda.spark.report.gather import gather
    from remuda.spark.report.sources import LakeLives, Lives, LogLives
    from remuda.spark.source.selection import Selection

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


def _is_small(wish: Wish) -> bool:
    if wish.lake is not None or wish.url is None:
        return False
    need_numpy()
    from remuda.spark.source.spark_log import open_log
    from remuda.spark.source.tables import EVENTS, MESSAGES

    log = open_log(wish.url)
    messages, events = log.cut()
    return max(log.rows(MESSAGES, 0, messages), log.rows(EVENTS, 0, events)) <= limits.HERE


def _here(wish: Wish, tell: Tell) -> Report:
    if wish.lake is not None or wish.url is None:
        raise InvalidOption("only a log can be counted in this process; a lake is read by Spark")
    need_numpy()
    from remuda.spark.report.local import gather_here
    from remuda.spark.source.spark_log import open_log

    log = open_log(wish.url)
    return gather_here(log, wish, tell) if log.cut()[0] else empty(wish)
