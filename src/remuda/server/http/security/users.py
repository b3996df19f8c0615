"""Who may use the dashboard and the HTTP API: users of the file that AMQP and the wire read too, by their tags."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from typing import Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.server import users as network
from remuda.server.watched_files import INTERVAL

TAG_OF: Final = {"operator": "administrator", "viewer": "monitoring"}
"""The tag that lets a user have a role."""


class Role(StrEnum):
    """A viewer sees everything and changes nothing; an operator may also change things."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class User(msgspec.Struct, frozen=True):
    """Somebody who is logged in."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        return self.role is Role.OPERATOR or role is Role.VIEWER


class UserEntry(msgspec.Struct, frozen=True):
    """A user as the file has it."""

    user: User
    password: str
    """As it is kept."""


class Users:
    """The users with a role, of all those of a file."""

    def __init__(self, users: network.Users) -> None:
        self._users = users
        self._looked = time.monotonic()
        if not any(map(_role, users)):
            where = "the users file" if users.path is None else repr(os.fspath(users.path))
            raise InvalidOption(
                f"nobody in {where} may use the dashboard; let somebody: remuda dashboard-user FILE NAME, or "
                "remuda users set FILE NAME --tag administrator"
            )

    def entry(self, name: str) -> UserEntry | None:
        """A user as the file has it now: it is read again when it changes."""
        now = time.monotonic()
        if now - self._looked >= INTERVAL:
            self._looked = now
            self._users.refresh()
        found = self._users.find(name)
        role = None if found is None else _role(found)
        return None if role is None else UserEntry(User(name, role), self._users.kept(name))

    def check(self, name: str, password: str) -> User | None:
        """The user, if the password is right. An unknown name takes as long as a wrong password."""
        found = self._users.check(name, password)
        role = None if found is None else _role(found)
        return None if role is None else User(name, role)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Users:
        return cls(network.Users.load(path))


def _role(user: network.User) -> Role | None:
    """What the tags let a user do; None if nothing."""
    return next((role for role in (Role.OPERATOR, Role.VIEWER) if TAG_OF[role] in user.tags), None)


def add_user(path: str | os.PathLike[str], name: str, password: str, role: Role | str) -> bool:
    """Let a user of a file log in, with this password and role; returns whether the user is new. One that is new may
    do nothing else: not connect over AMQP or the wire."""
    if role not in TAG_OF:
        raise InvalidOption(f"a role is viewer or operator, not {role!r}")
    if ":" in name:
        raise InvalidOption(f"a user's name for the dashboard has no colon, not {name!r}")
    return network.add_user(path, name, password, {}, [TAG_OF[role]])
