"""Lists as the caller wants them: sorted, cut into pages, searched by name, and with some columns only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from remuda.server.management.calls import bad_request

_MOST: Final = 500
_PAGE: Final = 100


def listed(items: list[dict[str, Any]], query: Mapping[str, str]) -> Any:
    """The items, as the query asks for them."""
    total = len(items)
    if wanted := query.get("name", ""):
        items = _named(items, wanted, query.get("use_regex") == "true")
    if sort := query.get("sort", ""):
        path = sort.split(".")
        items = sorted(items, key=lambda item: _key(_find(item, path)), reverse=query.get("sort_reverse") == "true")
    if "page" not in query:
        return [_chosen(item, query) for item in items]
    page, size = _number(query, "page", 1, 1 << 30), _number(query, "page_size", _PAGE, _MOST)
    pages = max(-(-len(items) // size), 1)
    if page > pages:
        raise bad_request(f"page_out_of_range: there are {pages} pages")
    part = [_chosen(item, query) for item in items[(page - 1) * size : page * size]]
    return {
        "filtered_count": len(items), "item_count": len(part), "items": part, "page": page, "page_count": pages,
        "page_size": size, "total_count": total,
    }  # fmt: skip


def _named(items: list[dict[str, Any]], wanted: str, by_pattern: bool) -> list[dict[str, Any]]:
    try:
        pattern = re.compile(wanted if by_pattern else re.escape(wanted), re.IGNORECASE if not by_pattern else 0)
    except re.error as error:
        raise bad_request(f"the name is not a regular expression: {error}") from None
    return [item for item in items if pattern.search(str(item.get("name", "")))]


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= most:
        raise bad_request(f"{name} must be 1 to {most}, not {text[:40]!r}")
    return int(text)


def _chosen(item: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    columns = [column for column in query.get("columns", "").split(",") if column]
    if not columns:
        return item
    chosen: dict[str, Any] = {}
    for column in columns:
        path = column.split(".")
        value = _find(item, path)
        if value is None:
            continue
        place = chosen
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return chosen


def _find(item: Any, path: list[str]) -> Any:
    for part in path:
        item = item.get(part) if isinstance(item, dict) else None
    return item


def _key(value: Any) -> tuple[int, Any]:
    """Numbers first, then texts; what is not there comes before both."""
    if value is None:
        return 0, 0
    return (1, value) if isinstance(value, int | float) else (2, str(value))
