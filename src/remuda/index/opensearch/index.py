"""The search index on a server.

`<name>.b<build>.<queue>` holds the messages of a queue; aliases `<name>.q.<queue>` and `<name>.all` point to the build
that answers. `<name>.state` says which build that is, and how far each has come. What is sent twice counts once: a
message is created under its offset, and a change carries the position of its event.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
from opensearchpy import ConflictError, NotFoundError, RequestError

from remuda.index.copies import MOVED, Change, Copy
from remuda.index.folding import Changes, fold
from remuda.index.messages import documents
from remuda.index.opensearch.mapping import CHANGE, MAPPINGS, SETTINGS, copy_of, of_copy, request, row, source
from remuda.index.opensearch.server import Action, Address, Server, server_errors
from remuda.index.port import Document, IndexMoved, IndexUnusable, Reached
from remuda.index.query import Page, Query
from remuda.model.state import State

_AT_ONCE: Final = 1000
_RANGES: Final = 500
_ALLOWED: Final = re.compile(r"[^\\/*?\"<>| ,#:A-Z\x00-\x1f]+")
_NAME_BYTES: Final = 255
_OWN: Final = re.compile(r"all|state|q\..*|b\d+\..*", re.DOTALL)
"""Names of the index's own. No prefix holds a dot, so those of `shop` are none of `shop-back`."""


class _Builds(NamedTuple):
    """The build that answers, and the one being filled; 0 for none."""

    answering: int = 0
    filling: int = 0


class OpenSearchIndex:
    """Implements `SearchIndex`. Several followers and searchers may use it at once."""

    def __init__(self, url: str) -> None:
        self._server = Server(Address.parse(url))
        self._name = self._server.address.name
        self._client = self._server.client
        self._guard = threading.RLock()
        self._known: set[str] = set()
        self._begun = 0
        self._switched = False
        """Whether the aliases were seen to lead to the build that answers."""

    def reached(self) -> Reached | None:
        with self._guard, server_errors(self._server.address):
            build = self._filling()
            if not build:
                return None
            if not (self._begun or self._switched):
                self._complete_switch(build)
            return self._reached(build)[0]

    def apply(
        self, messages: Sequence[pa.RecordBatch], events: Sequence[pa.RecordBatch], after: Reached, reached: Reached
    ) -> None:
        with self._guard, server_errors(self._server.address):
            build = self._need_filling()
            now, mark = self._reached(build)
            if now != after:
                raise IndexMoved(
                    f"the index is at {tuple(now)}, not at {tuple(after)}: another process follows the log too"
                )
            parts = fold(events)
            first = next(parts, {})
            for batch in messages:
                self._create(build, documents(batch, first))
            for part in chain((first,), parts):
                self._change(build, part)
            try:
                self._put(f"b{build}", reached._asdict(), **mark)
            except ConflictError as error:
                raise IndexMoved("another process follows the log into this index too") from error

    def load(self, documents: Iterable[Document]) -> None:
        with self._guard, server_errors(self._server.address):
            # The process that has begun a build may have others to load it.
            build = self._begun or self._builds().filling
            rest = iter(documents)
            while part := list(islice(rest, _AT_ONCE * 5)):
                self._create(build, part)

    def begin(self, reached: Reached) -> None:
        with self._guard, server_errors(self._server.address):
            self._prepare()
            builds = self._builds()
            if builds.filling and builds.filling != builds.answering:
                self._remove(builds.filling)
            build = max(builds) + 1
            self._remove(build)
            self._put(f"b{build}", reached._asdict())
            self._put("builds", _Builds(builds.answering, build)._asdict())
            self._begun = build

    def finish(self) -> None:
        with self._guard, server_errors(self._server.address):
            build, answering = self._need_filling(), self._builds().answering
            self._put("builds", _Builds(build, build)._asdict())
            if answering != build:
                self._switch(build)
                for old in self._all_builds():
                    if old != build:
                        self._remove(old)
                self._switch(build)  # another process may just have completed the switch to an old one
            self._begun = 0

    def forget(self, gone: Iterable[range]) -> None:
        with self._guard, server_errors(self._server.address):
            build = self._need_filling()
            rest = iter(gone)
            while part := list(islice(rest, _RANGES)):
                self.refresh()
                ranges = [{"range": {"offset": {"gte": run.start, "lt": run.stop}}} for run in part if run]
                self._client.delete_by_query(
                    index=self._indexes(build),
                    body={"query": {"bool": {"should": ranges}}},
                    params={"conflicts": "proceed", "refresh": "true", "allow_no_indices": "true"},
                )

    def search(self, query: Query) -> Page:
        with server_errors(self._server.address):
            alias = f"{self._name}.all" if query.queue is None else f"{self._name}.q.{_slug(query.queue)}"
            answer = self._client.search(
                index=alias, body=request(query), params={"ignore_unavailable": "true", "allow_no_indices": "true"}
            )
            return Page.of([row(found["_source"]) for found in answer["hits"]["hits"]], query.limit)

    def counts(self) -> Mapping[str, Mapping[State, int]]:
        found: dict[str, dict[State, int]] = {}
        asked: dict[str, Any] = {
            "size": _AT_ONCE,
            "sources": [{name: {"terms": {"field": field}}} for name, field in (("queue", "queue"), ("state", "kept"))],
        }
        with server_errors(self._server.address):
            while True:
                answer = self._client.search(
                    index=f"{self._name}.all",
                    body={
                        "size": 0,
                        "query": {"bool": {"must_not": {"term": {"kept": MOVED}}}},
                        "aggs": {"counts": {"composite": asked}},
                    },
                    params={"ignore_unavailable": "true", "allow_no_indices": "true"},
                )
                page = answer.get("aggregations", {}).get("counts", {"buckets": []})
                for bucket in page["buckets"]:
                    states = found.setdefault(bucket["key"]["queue"], {})
                    states[State(bucket["key"]["state"])] = bucket["doc_count"]
                if "after_key" not in page:
                    return found
                asked["after"] = page["after_key"]

    def refresh(self) -> None:
        with self._guard, server_errors(self._server.address):
            if build := self._filling():
                self._client.indices.refresh(index=self._indexes(build), params={"allow_no_indices": "true"})

    def drop(self) -> None:
        with self._guard, server_errors(self._server.address):
            for build in self._all_builds():
                self._remove(build)
            self._client.indices.delete(index=f"{self._name}.state", params={"ignore_unavailable": "true"})
            if self._client.indices.exists_index_template(name=self._name):
                self._client.indices.delete_index_template(name=self._name)
            self._known.clear()
            self._begun = 0
            self._switched = False

    def describe(self) -> str:
        return f"{self._server.address.url}/{self._name}"

    def close(self) -> None:
        self._server.close()

    def _create(self, build: int, found: Iterable[Document]) -> None:
        """Add messages. Those that are there already get the changes of newer events."""

        def actions() -> Iterator[Action]:
            for document in found:
                for queue, copy in document.copies:
                    own = source(document, queue, copy)
                    yield Action("create", self._index(build, queue), str(document.offset), own)

        again = [
            _update(action.target, action.id, copy_of(action.body))
            for action, _ in self._server.bulk(actions())
            if action.body["position"] >= 0
        ]
        self._update(again)

    def _change(self, build: int, changes: Changes) -> None:
        for queue, copies in changes.items():
            if copies:
                index, rest = self._index(build, queue), iter(sorted(copies.items()))
                while part := dict(islice(rest, _AT_ONCE)):
                    self._change_copies(build, queue, index, part)

    def _change_copies(self, build: int, queue: str, index: str, changes: dict[int, Change]) -> None:
        """Bring copies up to date. Whoever did the same meanwhile did it with the same events: the later one stays."""
        answer = self._client.mget(
            body={"ids": list(map(str, changes))}, index=index, params={"_source_includes": "life"}
        )
        found = {int(one["_id"]): copy_of(one["_source"]) for one in answer["docs"] if one.get("found")}
        after = {offset: copy.after(changes[offset]) for offset, copy in found.items()}
        self._update([_update(index, str(offset), copy) for offset, copy in after.items() if copy is not found[offset]])
        missing = {offset: change for offset, change in changes.items() if offset not in found}
        if missing:
            self._arrive(build, queue, index, missing)

    def _update(self, actions: list[Action]) -> None:
        for action, status in self._server.bulk(actions):
            if status != 404:  # else it was forgotten meanwhile
                raise IndexUnusable(
                    f"message {action.id} could not be updated (status {status}); continue, and the update is repeated"
                )

    def _arrive(self, build: int, queue: str, index: str, changes: dict[int, Change]) -> None:
        """Add copies in a queue that their messages came to later. What all copies share is taken from another copy;
        messages without one were collected, or lie before the index begins."""
        self.refresh()
        ids = sorted(map(str, changes))
        answer = self._client.search(
            index=self._indexes(build),
            body={"query": {"ids": {"values": ids}}, "collapse": {"field": "offset"}, "size": len(ids)},
        )

        def actions() -> Iterator[Action]:
            for found in answer["hits"]["hits"]:
                change = changes[int(found["_id"])]
                copy = Copy.begun(change.events()[0].time, queue).after(change)
                own = {**found["_source"], "queue": queue, **of_copy(copy)}
                yield Action("create", index, found["_id"], own)

        for _ in self._server.bulk(actions()):
            pass  # it has arrived meanwhile, by another follower

    def _index(self, build: int, queue: str) -> str:
        """The index of a queue, created when it is first used."""
        name = f"{self._name}.b{build}.{_slug(queue)}"
        if name not in self._known:
            try:
                aliases = self._aliases(queue) if self._builds().answering == build else []
                body = {"aliases": {alias: {} for alias in aliases}, "mappings": {"_meta": {"queue": queue}}}
                self._client.indices.create(index=name, body=body)
            except RequestError as error:
                if error.error != "resource_already_exists_exception":
                    raise
            self._known.add(name)
        return name

    def _aliases(self, queue: str) -> list[str]:
        """The names under which a queue's index is found: its own where the server allows it, one that is always
        allowed, and that of all."""
        own = f"{self._name}.{queue}"
        allowed = _ALLOWED.fullmatch(queue) and queue == queue.lower() and not _OWN.fullmatch(queue)
        plain = [own] if allowed and len(own.encode()) <= _NAME_BYTES else []
        return [*plain, f"{self._name}.q.{_slug(queue)}", f"{self._name}.all"]

    def _indexes(self, build: int) -> str:
        return f"{self._name}.b{build}.*"

    def _complete_switch(self, build: int) -> None:
        """Point the aliases to the build that answers: its process may have been killed before it did."""
        # A build that has just been replaced fails here: its indexes are gone, and nothing is changed.
        with contextlib.suppress(NotFoundError):
            self._switch(build)
        self._switched = True

    def _switch(self, build: int) -> None:
        """Point the aliases to a build, all in one step, where they do not yet."""
        actions: list[dict[str, Any]] = []
        prefix = f"{self._name}.b{build}."
        found = self._client.indices.get(index=f"{self._name}.b*", params={"allow_no_indices": "true"})
        if not any(index.startswith(prefix) for index in found):
            return  # it holds nothing yet, or was replaced
        for index, described in found.items():
            if index.startswith(prefix):
                for alias in self._aliases(described["mappings"]["_meta"]["queue"]):
                    if alias not in described["aliases"]:
                        actions.append({"add": {"index": index, "alias": alias}})
            else:
                actions += ({"remove": {"index": index, "alias": alias}} for alias in described["aliases"])
        if actions:
            self._client.indices.update_aliases(body={"actions": actions})

    def _all_builds(self) -> set[int]:
        names = self._client.indices.get(index=f"{self._name}.b*", params={"allow_no_indices": "true"})
        pattern = re.compile(re.escape(self._name) + r"\.b(\d+)\..*")
        return {int(match[1]) for name in names if (match := pattern.fullmatch(name))}

    def _remove(self, build: int) -> None:
        # One by one: a server may be set to refuse the removal of many by a pattern.
        for name in self._client.indices.get(index=self._indexes(build), params={"allow_no_indices": "true"}):
            self._client.indices.delete(index=name, params={"ignore_unavailable": "true"})
            self._known.discard(name)

    def _prepare(self) -> None:
        self._client.indices.put_index_template(
            name=self._name,
            body={
                "index_patterns": [f"{self._name}.b*.*"],
                "priority": 500,
                "template": {"settings": SETTINGS, "mappings": MAPPINGS},
            },
        )
        if not self._client.indices.exists(index=f"{self._name}.state"):
            body = {
                "settings": {"number_of_shards": 1, "auto_expand_replicas": "0-1"},
                "mappings": {"dynamic": False, "properties": {}},
            }
            self._client.indices.create(index=f"{self._name}.state", body=body, params={})

    def _builds(self) -> _Builds:
        try:
            found = self._client.get(index=f"{self._name}.state", id="builds")["_source"]
        except NotFoundError:
            return _Builds()
        return _Builds(found["answering"], found["filling"])

    def _filling(self) -> int:
        """The build that was begun here, or the one that answers."""
        return self._begun or self._builds().answering

    def _need_filling(self) -> int:
        if build := self._filling():
            return build
        raise IndexUnusable(f"there is no search index at {self.describe()}; build it: remuda index build")

    def _reached(self, build: int) -> tuple[Reached, dict[str, int]]:
        """How far a build is, and the version that a change of that must name."""
        try:
            found = self._client.get(index=f"{self._name}.state", id=f"b{build}")
        except NotFoundError:
            raise IndexMoved("another process has rebuilt the index") from None
        mark = {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}
        return Reached(*(found["_source"][name] for name in Reached._fields)), mark

    def _put(self, id: str, body: dict[str, Any], **mark: int) -> None:
        self._client.index(index=f"{self._name}.state", id=id, body=body, params=mark)


def _update(index: str, id: str, copy: Copy) -> Action:
    return Action("update", index, id, {"script": {"source": CHANGE, "params": of_copy(copy)}})


def _slug(queue: str) -> str:
    """A queue's name in the letters that an index name may have, and different from that of every other queue."""
    plain = re.sub(r"[^a-z0-9]+", "-", queue.lower()).strip("-")[:60]
    return f"{plain or 'none'}-{sha256(queue.encode('utf-8', 'replace')).hexdigest()[:12]}"
