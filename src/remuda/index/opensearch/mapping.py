"""What the server keeps of a message, and how a query finds it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any, Final

import msgspec

from remuda.index.copies import Copy, pack, unpack
from remuda.index.port import Document
from remuda.index.query import Query
from remuda.index.text import MAX_TEXT, searchable, split
from remuda.model.message_row import MessageRow

GRAMS: Final = 64
"""Prefixes of topics up to this length are terms of their own; longer ones are found a little slower."""
_LONGEST_TERM: Final = 512

_KEYWORD: Final = {"type": "keyword"}
_KEPT: Final = {"type": "keyword", "index": False, "doc_values": False}
_NUMBER: Final = {"type": "long"}
_COUNT: Final = {"type": "integer", "index": False}
_FLAGS: Final = ("queued", "delivered", "success", "archived")
OF_LIFE: Final = (
    "state", *_FLAGS, "modified", "consumed", "processed", "completed", "failed", "duration", "attempts",
    "confirmedCount", "consumedBy", "reason", "movedTo",
)  # fmt: skip
_SHOWN: Final = (
    "offset", "created", "id", "name", "topics", "object", "key", "timestamp", "mimeType", "size", "queue", "life",
)  # fmt: skip

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
_TIME: Final = {"type": "long", "index": False}
_FLAG: Final = {"type": "boolean"}
MAPPINGS: Final[dict[str, Any]] = {
    "dynamic": "strict",
    "properties": {
        "offset": _NUMBER,
        "queue": _KEYWORD,
        "id": _KEPT,
        "name": _KEPT,
        "topics": _KEPT,
        "topicCount": _COUNT,
        "state": _KEYWORD,
        **dict.fromkeys(("queued", "delivered", "success", "archived"), _FLAG),
        "created": _NUMBER,
        **dict.fromkeys(("timestamp", "modified", "consumed", "processed", "completed", "failed", "duration"), _TIME),
        "attempts": _COUNT,
        "confirmedCount": _COUNT,
        "consumedBy": {"type": "object", "enabled": False},
        "reason": _KEPT,
        "movedTo": _KEPT,
        "object": _KEPT,
        "key": _KEPT,
        "mimeType": _KEPT,
        "size": _TIME,
        "message": {"type": "text", "index": False},
        # How messages are found, and how their documents are brought up to date.
        "position": _TIME,
        "life": {"type": "binary"},
        "kept": _KEYWORD,
        "words": {"type": "text", "analyzer": "words", "index_options": "docs", "norms": False},
        "topicTerms": {
            "type": "keyword",
            "fields": {"beginnings": {"type": "text", "analyzer": "topic", "index_options": "docs", "norms": False}},
        },
        "objectTerm": _KEYWORD,
        "keyTerm": _KEYWORD,
    },
}

CHANGE: Final = """
if (ctx._source.position >= params.position) { ctx.op = 'none' } else { ctx._source.putAll(params) }
"""
"""Does nothing to a copy that this event or a later one was applied to already."""


def source(document: Document, queue: str, copy: Copy) -> dict[str, Any]:
    """What is kept of one copy: the row that is shown, with the body's text, and what it is found by."""
    topics = document.topics or (document.name,)
    return {
        "offset": document.offset,
        "queue": queue,
        "created": document.created,
        "id": document.id,
        "name": document.name,
        "topics": list(topics),
        "topicCount": len(topics),
        "timestamp": document.timestamp,
        "object": document.object,
        "key": document.key,
        "mimeType": document.mime_type,
        "size": document.size,
        "message": document.text[:MAX_TEXT],
        "words": " ".join(dict.fromkeys(split(searchable(document.text)))),
        "topicTerms": [topic.casefold() for topic in topics],
        "objectTerm": term(document.object),
        "keyTerm": term(document.key),
        **of_copy(copy),
    }


def of_copy(copy: Copy) -> dict[str, Any]:
    """What is kept of the life of a copy."""
    shown = msgspec.to_builtins(copy.life) | {name: getattr(copy.life, name) for name in _FLAGS}
    shown = {name: shown.get(name) for name in OF_LIFE}
    return shown | {"position": copy.position, "kept": copy.state, "life": b64encode(pack(copy)).decode()}


def copy_of(kept: dict[str, Any]) -> Copy:
    return unpack(b64decode(kept["life"]))


def row(kept: dict[str, Any]) -> MessageRow:
    return MessageRow.of(
        kept["offset"], kept["created"], kept["id"], kept["name"], tuple(kept["topics"]), kept["object"], kept["key"],
        kept["timestamp"], kept["mimeType"], kept["size"], kept["queue"], copy_of(kept).life,
    )  # fmt: skip


def request(query: Query) -> dict[str, Any]:
    """A query in the server's query language."""
    must: list[dict[str, Any]] = []
    if query.queue is not None:
        must.append({"term": {"queue": query.queue}})
    if states := query.kept_states:
        must.append({"terms": {"kept": states}})
    times = {sign: time for sign, time in (("gte", query.since), ("lt", query.until)) if time is not None}
    if times:
        must.append({"range": {"created": times}})
    if query.offsets is not None:
        must.append({"terms": {"offset": list(query.offsets)}})
    for name in ("object", "key"):
        if (value := getattr(query, name)) is not None:
            must.append({"term": {f"{name}Term": term(value)}})
    if (prefix := query.topic_prefix) is not None:
        if prefix.below:
            must.append({"bool": {"should": [{"term": {"topicTerms": prefix.stem}}, _begins(prefix.stem + ".")]}})
        else:
            must.append(_begins(prefix.stem))
    must += [{"prefix" if word.prefix else "term": {"words": word.text}} for word in query.words()]
    asked: dict[str, Any] = {
        "query": {"bool": {"filter": must}},
        "sort": [{"offset": "desc"}, {"queue": "asc"}],
        "size": query.limit + 1,
        "_source": list(_SHOWN),
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
        return {"term": {"topicTerms.beginnings": stem}}
    return {"prefix": {"topicTerms": stem}}
