"""Talking to the server: its address, bulk requests that are repeated while it is busy, its errors as Remuda's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from opensearchpy import ConnectionError as Unreachable
from opensearchpy import OpenSearch, OpenSearchException, TransportError

from remuda.index.port import IndexUnusable
from remuda.model.errors import InvalidOption

_BULK_BYTES: Final = 5_000_000
_BULK_ACTIONS: Final = 5_000
_BUSY: Final = frozenset({429, 503})
_TRIES: Final = 8
_TIMEOUT: Final = 60


class Action(NamedTuple):
    """One line of a bulk request and what belongs to it."""

    verb: str
    target: str
    """The index it goes to."""
    id: str
    body: dict[str, Any]


class Address(NamedTuple):
    """Where the server is, and the prefix of the names of all our indexes on it."""

    url: str
    name: str
    login: tuple[str, str] | None

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host:
            raise InvalidOption(f"index: {url!r} names no host; write opensearch://host:port/name")
        secure = parts.scheme.endswith("https")
        name = parts.path.strip("/") or "remuda"
        if not name.replace("-", "").isalnum() or not name.isascii() or name != name.lower() or name[0] == "-":
            raise InvalidOption(f"index: {name!r} cannot be the prefix of index names; use a-z, 0-9 and -")
        if len(name) > 64:
            raise InvalidOption(f"index: {name[:20]!r}… is too long for the prefix of index names; at most 64 letters")
        if ":" in host:
            host = f"[{host}]"
        login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        return cls(f"{'https' if secure else 'http'}://{host}:{port or (443 if secure else 9200)}", name, login)


class Server:
    """One server or cluster."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.client = OpenSearch(
            address.url, http_auth=address.login, timeout=_TIMEOUT, max_retries=3, retry_on_timeout=True
        )

    def bulk(self, actions: Iterable[Action]) -> Iterator[tuple[Action, int]]:
        """Send all actions. Yields those that were not done, with the status that says why: 409 or 404."""
        for part in _parts(actions):
            waiting = part
            for attempt in range(_TRIES):
                busy = []
                for action, status, error in self._bulk(waiting):
                    if status in _BUSY:
                        busy.append(action)
                    elif status in (404, 409) and "index_not_found" not in str(error):
                        yield action, status
                    elif status >= 300:
                        raise IndexUnusable(f"{self.address.url} did not accept message {action.id}: {_reason(error)}")
                waiting = busy
                if not waiting:
                    break
                time.sleep(0.05 * 2**attempt)
            else:
                raise IndexUnusable(f"{self.address.url} is too busy; what it accepted is kept, continue later")

    def _bulk(self, actions: list[Action]) -> Iterator[tuple[Action, int, Any]]:
        encode = msgspec.json.encode
        lines: list[bytes] = []
        for verb, target, id, body in actions:
            again = {"retry_on_conflict": _TRIES} if verb == "update" else {}
            lines.append(encode({verb: {"_index": target, "_id": id, **again}}))
            lines.append(encode(body))
        with server_errors(self.address):
            try:
                answer = self.client.bulk(body=b"\n".join(lines).decode() + "\n")
            except TransportError as error:
                if error.status_code not in _BUSY:
                    raise
                # It may refuse the whole request as well as single actions.
                yield from ((action, error.status_code, error.error) for action in actions)
                return
        if answer["errors"]:
            for action, item in zip(actions, answer["items"], strict=True):
                result = item[action.verb]
                if result["status"] >= 300:
                    yield action, result["status"], result.get("error")

    def close(self) -> None:
        self.client.close()


def _parts(actions: Iterable[Action]) -> Iterator[list[Action]]:
    part: list[Action] = []
    size = 0
    for action in actions:
        part.append(action)
        size += 600 + len(action.body.get("message", "")) + len(action.body.get("words", ""))
        if len(part) >= _BULK_ACTIONS or size >= _BULK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


@contextlib.contextmanager
def server_errors(address: Address) -> Iterator[None]:
    """The client's errors in one line each."""
    try:
        yield
    except Unreachable as error:
        raise IndexUnusable(
            f"{address.url} cannot be reached: {error.error}. The log is unaffected; continue when it is back"
        ) from error
    except TransportError as error:
        text = _reason(error.info.get("error") if isinstance(error.info, dict) else error.error)
        hint = ""
        if "maximum normal shards" in text or "maximum shards" in text:
            hint = "; every queue has an index of its own: raise cluster.max_shards_per_node, or remove old queues"
        elif error.status_code in (401, 403):
            hint = "; write the login into the URL: opensearch://user:password@host/name"
        raise IndexUnusable(f"{address.url} refused: {text}{hint}") from error
    except OpenSearchException as error:
        raise IndexUnusable(f"{address.url}: {error}") from error


def _reason(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("reason") or error.get("type") or error)
    return str(error)
