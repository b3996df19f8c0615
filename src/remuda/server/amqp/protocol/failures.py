"""How a request fails: with the reply code and text that RabbitMQ's clients expect, closing channel or connection."""

from __future__ import annotations

from typing import Final

from remuda.model.errors import RemudaError

NO_ROUTE: Final = 312
CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406

SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504

RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

_NAMES: Final = {
    311: "CONTENT_TOO_LARGE", 312: "NO_ROUTE", 313: "NO_CONSUMERS", 320: "CONNECTION_FORCED", 402: "INVALID_PATH",
    403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED", 501: "FRAME_ERROR",
    502: "SYNTAX_ERROR", 503: "COMMAND_INVALID", 504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME", 506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR",
}  # fmt: skip
_SOFT: Final = frozenset({311, 313, 403, 404, 405, 406})
_LONGEST: Final = 255


class Failure(RemudaError):
    """A request that closes its channel or, if it is `hard`, its connection."""

    def __init__(self, code: int, text: str, *, hard: bool | None = None) -> None:
        self.code = code
        self.text = reply_text(f"{_NAMES.get(code, 'INTERNAL_ERROR')} - {text}")
        self.hard = code not in _SOFT if hard is None else hard
        super().__init__(self.text)


def reply_text(text: str) -> str:
    """A text cut to the 255 bytes that a reply text may have; it shows where it was cut."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= _LONGEST:
        return raw.decode()
    return raw[: _LONGEST - 3].decode("utf-8", "ignore") + "..."


def no_queue(name: str, vhost: str) -> Failure:
    return Failure(NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")


def no_exchange(name: str, vhost: str) -> Failure:
    return Failure(NOT_FOUND, f"no exchange '{name}' in vhost '{vhost}'")


def locked(name: str, vhost: str) -> Failure:
    return Failure(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration.",
    )


def refused(access: str, kind: str, name: str, vhost: str, user: str) -> Failure:
    return Failure(ACCESS_REFUSED, f"{access} access to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'")


def inequivalent(argument: str, kind: str, name: str, vhost: str, received: str, current: str) -> Failure:
    return Failure(
        PRECONDITION_FAILED,
        f"inequivalent arg '{argument}' for {kind} '{name}' in vhost '{vhost}': received {received} but current is "
        f"{current}",
    )
