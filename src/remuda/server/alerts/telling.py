"""Tells people of alarms: by webhook and by mail. What could not be told is told at the next try."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from typing import Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.server.alerts.rules import Change
from remuda.server.http.security.outgoing_requests import Endpoint, post, read_networks

_SECONDS: Final = 10.0
_KEPT: Final = 1000
Tell = Callable[[Sequence[Change]], None]


def words(change: Change) -> str:
    """A change for people, on one line."""
    alarm = change.alarm
    return f"{'ALARM' if change.began else 'over'} {alarm.queue}: {alarm.what} ({alarm.rule})"


def webhook(url: str, allow_private: Sequence[str] = ()) -> Tell:
    """Changes as one POST with JSON: `{"text": …, "changes": [{"began", "queue", "rule", "what", "since"}]}`."""
    endpoint, allowed = Endpoint.parse(url), read_networks(allow_private)

    def tell(changes: Sequence[Change]) -> None:
        body = msgspec.json.encode(
            {
                "text": "\n".join(map(words, changes)),
                "changes": [{"began": one.began, **msgspec.to_builtins(one.alarm)} for one in changes],
            }
        )
        headers = {"Content-Type": "application/json"}
        answer = post(endpoint, body, headers, timeout=_SECONDS, allowed=allowed)
        if not 200 <= answer.status < 300:
            raise ConnectionError(f"it answered {answer.status}")

    return tell


def mail(to: str, server: str, sender: str) -> Tell:
    """Changes as one mail, sent by an SMTP server `host:port`; by TLS if it offers that."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or "@" not in to:
        raise InvalidOption(
            f"mail needs an address like ann@example.org and a server like localhost:25, not {server!r}"
        )

    def tell(changes: Sequence[Change]) -> None:
        message = EmailMessage()
        first = words(changes[0]).translate({ord(sign): " " for sign in "\r\n"})
        message["Subject"] = f"Remuda: {first[:150]}" + (f" and {len(changes) - 1} more" if changes[1:] else "")
        message["From"], message["To"] = sender, to
        message.set_content("\n".join(map(words, changes)) + "\n")
        with smtplib.SMTP(host, int(port), timeout=_SECONDS) as connection:
            if connection.has_extn("starttls"):
                connection.starttls(context=ssl.create_default_context())
            connection.send_message(message)

    return tell


class Teller:
    """Tells of changes in every way that was given."""

    def __init__(self, ways: dict[str, Tell]) -> None:
        self._ways = ways
        self._untold: dict[str, list[Change]] = {name: [] for name in ways}

    def tell(self, changes: Sequence[Change]) -> list[str]:
        """Tell of changes, and of those that could not be told before. Returns what went wrong."""
        troubles = []
        for name, way in self._ways.items():
            waiting = self._untold[name] = [*self._untold[name], *changes][-_KEPT:]
            if not waiting:
                continue
            try:
                way(waiting)
            except Exception as error:  # whatever a network raises: the next look tries again
                troubles.append(f"{name}: {error}; {len(waiting)} not told yet, it is tried again")
            else:
                self._untold[name] = []
        return troubles
