"""The search index (T4): a projection of the log that finds messages by queue, topic, state, time, key and words.

It holds nothing that the log does not: it can be dropped and rebuilt at any time.
"""

from __future__ import annotations

import remuda.log.sealed.arrow  # noqa: F401  # says what to install, before other imports fail without it
from remuda.index.follower import Follower, rebuild
from remuda.index.language import parse_query
from remuda.index.opening import open_index
from remuda.index.port import Lag, Reached, SearchIndex
from remuda.index.query import Page, Query
from remuda.index.source import LogSource

__all__ = [
    "Follower",
    "Lag",
    "LogSource",
    "Page",
    "Query",
    "Reached",
    "SearchIndex",
    "open_index",
    "parse_query",
    "rebuild",
]
