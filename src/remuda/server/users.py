"""Who may connect over the network, and what each may do: a TOML file with scrypt passwords and patterns per vhost."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.server.secretfile import write_secret_file

ACCESSES: Final = ("configure", "write", "read")
EVERYTHING: Final = dict.fromkeys(ACCESSES, ".*")
MIN_PASSWORD: Final = 8
_COST: Final = 1 << 14
_BLOCK: Final = 8
_MEMORY: Final = 128 << 20
_MOST_COST: Final = 1 << 17
_SALT: Final = 8
"""The least bytes of a salt."""
_DIGEST: Final = 32


class User(msgspec.Struct, frozen=True):
    """A user that has logged in. `vhosts` has, by vhost and access, the pattern of the names that are granted."""

    name: str
    vhosts: Mapping[str, Mapping[str, re.Pattern[str]]] = {}
    everywhere: bool = False
    """Whether nothing is refused, as for local clients of a server without a users file."""

    @property
    def may_everything(self) -> bool:
        """Whether nothing in the vhost '/', which is the broker's own, is refused."""
        granted = self.vhosts.get("/", {})
        return self.everywhere or {name: pattern.pattern for name, pattern in granted.items()} == EVERYTHING

    def enters(self, vhost: str) -> bool:
        return self.everywhere or vhost in self.vhosts

    def may(self, vhost: str, access: str, name: str) -> bool:
        """Whether `access` (configure, write or read) to a queue or an exchange of this name is granted."""
        if self.everywhere:
            return True
        pattern = self.vhosts.get(vhost, {}).get(access)
        return pattern is not None and pattern.search(name) is not None


class Users:
    """Checks passwords. An unknown name takes as long as a wrong password."""

    def __init__(self, users: Iterable[tuple[User, str]]) -> None:
        self._users = {user.name: (user, password) for user, password in users}
        self._secret = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        """By name, a keyed digest of the password that was right: clients that reconnect, or connect by the thousand,
        need not wait for scrypt again."""
        if not self._users:
            raise InvalidOption("a users file needs at least one user; add one with: remuda users add FILE NAME")
        self._nobody = hashed(secrets.token_urlsafe(16))

    def __len__(self) -> int:
        return len(self._users)

    @property
    def vhosts(self) -> list[str]:
        """Every vhost that somebody may enter."""
        return sorted({vhost for user, _ in self._users.values() for vhost in user.vhosts})

    def check(self, name: str, password: str) -> User | None:
        """The user, if the password is right. Slow by design: call it in a thread."""
        user, kept = self._users.get(name, (None, self._nobody))
        digest = hashlib.blake2b(_encoded(password), key=self._secret).digest()
        if user is not None and hmac.compare_digest(self._right.get(name, b""), digest):
            return user
        if not _matches(password, kept) or user is None:
            return None
        self._right[name] = digest
        return user

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Users:
        return cls(_read_user(path, name, entry) for name, entry in _entries(path).items())


def hashed(password: str) -> str:
    """A password as the file stores it."""
    salt = secrets.token_bytes(2 * _SALT)
    digest = _digest(password, salt, _COST, _BLOCK, 1)
    return f"scrypt:{_COST}:{_BLOCK}:1:{_text(salt)}:{_text(digest)}"


def add_user(path: str | os.PathLike[str], name: str, password: str, vhosts: Mapping[str, Mapping[str, str]]) -> bool:
    """Add a user to a file, or replace the one of the same name; returns whether it is new."""
    if not name or not name.isprintable() or len(name.encode()) > 64:
        raise InvalidOption(f"a user's name is 1 to 64 bytes of printable text, not {name!r}")
    if len(password) < MIN_PASSWORD:
        raise InvalidOption(f"a password needs at least {MIN_PASSWORD} characters")
    entries = _entries(path) if Path(path).exists() else {}
    new = name not in entries
    entries[name] = {
        "password": hashed(password),
        "vhosts": {vhost: dict(granted) for vhost, granted in vhosts.items()},
    }
    _read_user(path, name, entries[name])
    _write(path, entries)
    return new


def remove_user(path: str | os.PathLike[str], name: str) -> None:
    entries = _entries(path)
    if entries.pop(name, None) is None:
        raise InvalidOption(f"there is no user {name!r} in {os.fspath(path)!r}")
    _write(path, entries)


def list_users(path: str | os.PathLike[str]) -> dict[str, dict[str, dict[str, str]]]:
    """By user and vhost, what is granted."""
    return {
        user.name: {
            vhost: {access: one.pattern for access, one in granted.items()} for vhost, granted in user.vhosts.items()
        }
        for user, _ in (_read_user(path, name, entry) for name, entry in _entries(path).items())
    }


def _entries(path: str | os.PathLike[str]) -> dict[str, Any]:
    where = os.fspath(path)
    try:
        content = tomllib.loads(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise InvalidOption(f"the users in {where!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{where!r} is not a users file: {error}") from None
    users = content.get("users")
    if not isinstance(users, dict):
        raise InvalidOption(f"{where!r} has no [users]; add one with: remuda users add {where} NAME")
    return users


def _read_user(path: str | os.PathLike[str], name: str, entry: Any) -> tuple[User, str]:
    where = f"user {name!r} in {os.fspath(path)!r}"
    if not isinstance(entry, dict) or set(entry) - {"password", "vhosts"}:
        raise InvalidOption(f"{where} must have a password and vhosts, and nothing else")
    password, vhosts = entry.get("password"), entry.get("vhosts", {"/": EVERYTHING})
    if not isinstance(password, str) or _parts(password) is None:
        raise InvalidOption(f"{where}: the password must be one that `remuda users add` wrote")
    if not isinstance(vhosts, dict):
        raise InvalidOption(f"{where}: vhosts must be a table of vhosts")
    return User(name, {vhost: _patterns(where, vhost, granted) for vhost, granted in vhosts.items()}), password


def _patterns(where: str, vhost: str, granted: Any) -> dict[str, re.Pattern[str]]:
    check_vhost(vhost)
    if not isinstance(granted, dict) or set(granted) - set(ACCESSES):
        raise InvalidOption(f"{where}: vhost {vhost!r} may have {', '.join(ACCESSES)}, each with a pattern")
    patterns = {}
    for access, pattern in granted.items():
        try:
            patterns[access] = re.compile(pattern or "^$")
        except (re.error, TypeError) as error:
            raise InvalidOption(f"{where}: {access} of vhost {vhost!r} is not a pattern: {error}") from None
    return patterns


def check_vhost(name: str) -> str:
    """Check the name of a vhost: `/`, or a string without a slash."""
    if (
        not isinstance(name, str)
        or not name
        or not name.isprintable()
        or (name != "/" and "/" in name)
        or len(name) > 64
    ):
        raise InvalidOption(f"a vhost is '/' or 1 to 64 printable characters without a slash, not {name!r}")
    return name


def _write(path: str | os.PathLike[str], entries: Mapping[str, Any]) -> None:
    lines = ["# Written by `remuda users`. Passwords are scrypt hashes; patterns are regular expressions.", "[users]"]
    for name, entry in entries.items():
        lines += ["", f"[users.{_quoted(name)}]", f"password = {_quoted(entry['password'])}"]
        for vhost, granted in entry.get("vhosts", {"/": EVERYTHING}).items():
            lines.append(f"[users.{_quoted(name)}.vhosts.{_quoted(vhost)}]")
            lines += [f"{access} = {_quoted(pattern)}" for access, pattern in granted.items()]
    write_secret_file(path, "\n".join(lines) + "\n")


def _quoted(text: str) -> str:
    """A string as TOML writes it, which is as JSON does but for one character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _parts(kept: str) -> tuple[int, int, int, bytes, bytes] | None:
    try:
        kind, *numbers, salt, digest = kept.split(":")
        cost, block, lanes = map(int, numbers)
        parts = cost, block, lanes, base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except ValueError:
        return None
    possible = 1 < cost <= _MOST_COST and not cost & (cost - 1) and 0 < block <= 16 and 0 < lanes <= 4
    fits = possible and 128 * block * (cost + lanes + 2) <= _MEMORY  # otherwise scrypt would fail at the login
    return parts if kind == "scrypt" and fits and len(parts[3]) >= _SALT and len(parts[4]) == _DIGEST else None


def _matches(password: str, kept: str) -> bool:
    parts = _parts(kept)
    if parts is None:
        return False
    cost, block, lanes, salt, digest = parts
    return hmac.compare_digest(_digest(password, salt, cost, block, lanes), digest)


def _digest(password: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    return hashlib.scrypt(_encoded(password), salt=salt, n=cost, r=block, p=lanes, maxmem=_MEMORY, dklen=_DIGEST)


def _encoded(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
