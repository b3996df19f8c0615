"""Where an index is: a folder with SQLite files, or an OpenSearch or Elasticsearch server by URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from remuda.index.port import SearchIndex
from remuda.model.errors import InvalidOption, RemudaError

FOLDER: Final = "index"
"""Where the index of a directory is unless another place is named."""
_SERVERS: Final = ("http", "https", "opensearch", "opensearch+https", "elasticsearch", "elasticsearch+https")


class OpenSearchMissing(RemudaError, ImportError):
    """The client library is not installed."""


def default_place(directory: str | os.PathLike[str]) -> str:
    return str(Path(directory) / FOLDER)


def open_index(place: str | os.PathLike[str]) -> SearchIndex:
    """The index at a place, whether there is anything in it or not.

    A path is a folder of its own. `opensearch://host:port/name` and `https://host/name` are servers, on which all
    indexes that belong together begin with `name`.
    """
    if not isinstance(place, str | os.PathLike) or not os.fspath(place):
        raise InvalidOption(f"index must be a path or a URL, not {place!r}")
    text = os.fspath(place)
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        from remuda.index.sqlite.index import SqliteIndex

        folder = Path(unquote(rest) if separator else text)
        if folder.exists() and not folder.is_dir():
            raise InvalidOption(f"index: {text!r} is a file; name a folder, which will hold the index")
        return SqliteIndex(folder)
    if scheme not in _SERVERS:
        raise InvalidOption(
            f"index: {scheme}:// is not known; name a folder, or one of {', '.join(_SERVERS)}://host/name"
        )
    try:
        import opensearchpy  # noqa: F401
    except ImportError:
        raise OpenSearchMissing("OpenSearch is an extra: pip install 'remuda[opensearch]'") from None
    from remuda.index.opensearch.index import OpenSearchIndex

    return OpenSearchIndex(text)
