"""The dashboard's users: names, roles and scrypt hashes in a text file, one user per line."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.server.secretfile import locked, write_secret_file
from remuda.server.watching import INTERVAL, Watched

_log = logging.getLogger("remuda.http")

_COST: Final = 1 << 14
_BLOCK: Final = 8
_MEMORY: Final = 64 << 20
MIN_PASSWORD: Final = 8


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
    """A user as the file stores it."""

    user: User
    salt: bytes
    digest: bytes

    @property
    def line(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"{self.user.name} {self.user.role.value} scrypt {salt} {digest}"


class Users:
    """Checks passwords. An unknown name takes as long as a wrong password."""

    def __init__(self, entries: Iterable[UserEntry], path: str | os.PathLike[str] | None = None) -> None:
        self._path = path
        self._watched = None if path is None else Watched([path])
        self._looked = time.monotonic()
        self._entries = {entry.user.name: entry for entry in entries}
        if not self._entries:
            raise InvalidOption("a users file needs at least one user; add one with: remuda dashboard-user FILE NAME")
        self._nobody = make_entry("nobody", secrets.token_urlsafe(16), Role.VIEWER)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, name: str) -> UserEntry | None:
        """A user as the file has it now: it is read again when it changes."""
        now = time.monotonic()
        if self._path is not None and self._watched is not None and now - self._looked >= INTERVAL:
            self._looked = now
            if self._watched.changed():
                try:
                    self._entries = {entry.user.name: entry for entry in _read(self._path)}
                except InvalidOption as error:
                    _log.error("%s; the users of before are kept", error)
        return self._entries.get(name)

    def check(self, name: str, password: str) -> User | None:
        entry = self.entry(name)
        known = entry or self._nobody
        right = hmac.compare_digest(_digest(password, known.salt), known.digest)
        return entry.user if entry is not None and right else None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Users:
        return cls(_read(path), path)


def make_entry(name: str, password: str, role: Role | str) -> UserEntry:
    """A new user, checked."""
    if not name or not name.isprintable() or len(name) > 64 or any(sign in name for sign in " :"):
        raise InvalidOption(f"a user's name is 1 to 64 printable characters without spaces or colons, not {name!r}")
    if len(password) < MIN_PASSWORD:
        raise InvalidOption(f"a password needs at least {MIN_PASSWORD} characters")
    try:
        chosen = Role(role)
    except ValueError:
        raise InvalidOption(f"a role is viewer or operator, not {role!r}") from None
    salt = secrets.token_bytes(16)
    return UserEntry(User(name, chosen), salt, _digest(password, salt))


def save_entry(path: str | os.PathLike[str], entry: UserEntry) -> bool:
    """Add a user to a file, or replace the one of the same name; returns whether it is new."""
    with locked(path):
        lines = [line for line in _lines(path) if line.strip()] if Path(path).exists() else []
        kept = [line for line in lines if line.split(" ")[0] != entry.user.name]
        write_secret_file(path, "\n".join([*kept, entry.line]) + "\n")
    return len(kept) == len(lines)


def _read(path: str | os.PathLike[str]) -> list[UserEntry]:
    return [_entry(path, number, line) for number, line in enumerate(_lines(path), 1) if line.strip()]


def _lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except OSError as error:
        raise InvalidOption(f"the users in {os.fspath(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidOption(f"{os.fspath(path)!r} is not a users file: it is not UTF-8") from None


def _entry(path: str | os.PathLike[str], number: int, line: str) -> UserEntry:
    try:
        name, role, kind, salt, digest = line.split()
        if kind != "scrypt":
            raise ValueError(kind)
        return UserEntry(User(name, Role(role)), base64.b64decode(salt), base64.b64decode(digest))
    except ValueError:
        raise InvalidOption(
            f"line {number} of {os.fspath(path)!r} is not a user; write it with: remuda dashboard-user {path} NAME"
        ) from None


def _digest(password: str, salt: bytes) -> bytes:
    text = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(text, salt=salt, n=_COST, r=_BLOCK, p=1, maxmem=_MEMORY, dklen=32)
