"""What the server keeps of a message, and how a query finds it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from remuda.index.port import CopyState, Document
from remuda.index.query import Hit, Query, kept_state, state_of
from remuda.index.text import split

GRAMS: Final = 64
"""Prefixes of topics up to this length are terms of their own; longer ones are found a little slower."""
_LONGEST_TERM: Final = 512

_KEYWORD: Final = {"type": "keyword"}
_KEPT: Final = {"type": "keyword", "index": False, "doc_values": False}
_NUMBER: Final = {"type": "long"}

SETTINGS: Final[dict[str, Any]] = {
    "number_of_shards": 1,
    "auto_expand_replicas": "0-1",
    "analysis": {
        "filter": {"beginnings": {"type": "edge_ngram", "min_gram": 1, "max_gram": GRAMS}},
        "tokenizer": {"words": {"type": "whitespace", "max_token_length": 1024}},
        "analyzer": {
            "topic": {"type": "custom", "tokenizer": "keyword", "filter": ["beginnings"]},
            "words": {"type": "custom", "tokenizer": "words"},
        },
    },
}
MAPPINGS: Final[dict[str, Any]] = {
    "dynamic": "strict",
    "properties": {
        "offset": _NUMBER,
        "queue": _KEYWORD,
        "state": _KEYWORD,
        "position": {"type": "long", "index": False},
        "created": _NUMBER,
        "modified": {"type": "long", "index": False},
        "attempts": {"type": "integer", "index": False},
        "reason": _KEPT,
        "id": _KEPT,
        "name": _KEPT,
        "shown_topics": _KEPT,
        "topics": {
            "type": "keyword",
            "fields": {"beginnings": {"type": "text", "analyzer": "topic", "index_options": "docs", "norms": False}},
        },
        "object": _KEPT,
        "object_term": _KEYWORD,
        "key": _KEPT,
        "key_term": _KEYWORD,
        "mime_type": _KEPT,
        "size": {"type": "long", "index": False},
        "text": {"type": "text", "analyzer": "words", "index_options": "docs", "norms": False},
    },
}

CHANGE: Final = """
if (ctx._source.position >= params.position) { ctx.op = 'none' }
else {
  ctx._source.position = params.position; ctx._source.state = params.state; ctx._source.modified = params.modified;
  if (params.attempts != null) { ctx._source.attempts = params.attempts }
  if (params.clean || params.reason != null) { ctx._source.reason = params.reason }
}
"""
"""Does nothing to a copy that this event or a later one was applied to already."""


def source(document: Document, copy: CopyState) -> dict[str, Any]:
    """What is kept of one copy."""
    return {
        "offset": document.offset,
        "queue": copy.queue,
        "state": kept_state(copy.state, copy.reason),
        "position": copy.position,
        "created": document.created,
        "modified": copy.modified,
        "attempts": copy.attempts,
        "reason": copy.reason,
        "id": document.id,
        "name": document.name,
        "shown_topics": list(document.topics),
        "topics": [topic.casefold() for topic in document.topics or (document.name,)],
        "object": document.object,
        "object_term": term(document.object),
        "key": document.key,
        "key_term": term(document.key),
        "mime_type": document.mime_type,
        "size": document.size,
        "text": " ".join(dict.fromkeys(split(document.text))),
    }


def hit(kept: dict[str, Any]) -> Hit:
    return Hit(
        kept["offset"],
        kept["queue"],
        kept["id"],
        kept["name"],
        tuple(kept["shown_topics"]) or (kept["name"],),
        state_of(kept["state"]),
        kept["created"],
        kept["modified"],
        kept["object"],
        kept["key"],
        kept["mime_type"],
        kept["size"],
        kept["attempts"],
        kept["reason"],
    )


def request(query: Query) -> dict[str, Any]:
    """A query in the server's query language."""
    must: list[dict[str, Any]] = []
    if query.queue is not None:
        must.append({"term": {"queue": query.queue}})
    if states := query.kept_states:
        must.append({"terms": {"state": states}})
    times = {sign: time for sign, time in (("gte", query.since), ("lt", query.until)) if time is not None}
    if times:
        must.append({"range": {"created": times}})
    if query.offsets is not None:
        must.append({"terms": {"offset": list(query.offsets)}})
    for name in ("object", "key"):
        if (value := getattr(query, name)) is not None:
            must.append({"term": {f"{name}_term": term(value)}})
    if (prefix := query.topic_prefix) is not None:
        if prefix.below:
            must.append({"bool": {"should": [{"term": {"topics": prefix.stem}}, _begins(prefix.stem + ".")]}})
        else:
            must.append(_begins(prefix.stem))
    must += [{"prefix" if word.prefix else "term": {"text": word.text}} for word in query.words()]
    asked: dict[str, Any] = {
        "query": {"bool": {"filter": must}},
        "sort": [{"offset": "desc"}, {"queue": "asc"}],
        "size": query.limit + 1,
        "_source": {"excludes": ["text", "topics", "object_term", "key_term"]},
        "track_total_hits": False,
    }
    if (after := query.after) is not None:
        asked["search_after"] = list(after)
    return asked


def term(value: str | None) -> str | None:
    """What a value is found by: itself, or its beginning and hash where it is longer than the server takes."""
    if value is None or len(value) <= _LONGEST_TERM:
        return value
    return f"{value[:_LONGEST_TERM]}#{sha256(value.encode('utf-8', 'replace')).hexdigest()}"


def _begins(stem: str) -> dict[str, Any]:
    if len(stem.encode("utf-16-le")) // 2 <= GRAMS:
        return {"term": {"topics.beginnings": stem}}
    return {"prefix": {"topics": stem}}
