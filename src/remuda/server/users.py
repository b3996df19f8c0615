"""Who may connect over the network, and what each may do: a TOML file with scrypt passwords and patterns per vhost."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.broker.toml import read_toml
from remuda.model.errors import InvalidOption
from remuda.model.values.texts import is_storable, shown
from remuda.server.secretfile import locked, write_secret_file
from remuda.server.watched_files import Watched

_log = logging.getLogger("remuda.server")
ACCESSES: Final = ("configure", "write", "read")
EVERYTHING: Final = dict.fromkeys(ACCESSES, ".*")
_UNCHANGED: Final[Mapping[str, Mapping[str, str] | None]] = {}
TAGS: Final = ("administrator", "monitoring", "policymaker", "management")
"""RabbitMQ's: who has none of them may not use the management API."""
MIN_PASSWORD: Final = 8
MAX_VHOST_BYTES: Final = 64
_COST: Final = 1 << 14
_BLOCK: Final = 8
_MEMORY: Final = 128 << 20
_MOST_COST: Final = 1 << 17
_SALT: Final = 8
"""The least bytes of a salt."""
_DIGEST: Final = 32
_OWN_HASHING: Final = "remuda_password_hashing_scrypt"
_OF_RABBITMQ: Final = ("sha256", "sha512")


class User(msgspec.Struct, frozen=True):
    """A user that has logged in. `vhosts` has, by vhost and access, the pattern of the names that are granted."""

    name: str
    vhosts: Mapping[str, Mapping[str, re.Pattern[str]]] = {}
    everywhere: bool = False
    """Whether nothing is refused, as for local clients of a server without a users file."""
    tags: tuple[str, ...] = ()
    """What the user may do in the management API, see `TAGS`."""

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


_Known = Mapping[str, tuple[User, str]]


class Users:
    """Checks passwords. An unknown name takes as long as a wrong password.

    Users of a file are read again when it changes, see `refresh`.
    """

    def __init__(self, users: Iterable[tuple[User, str]], path: str | os.PathLike[str] | None = None) -> None:
        self.path = path
        self._watched = None if path is None else Watched([path])
        self._refreshing = threading.Lock()
        self._users: _Known = {user.name: (user, password) for user, password in users}
        self._secret = secrets.token_bytes(32)
        self._right: dict[str, tuple[str, bytes]] = {}
        """By name, the password as it is kept, and a keyed digest of what was right: clients that reconnect, or connect
        by the thousand, need not wait for scrypt again."""
        if not self._users:
            raise InvalidOption("a users file needs at least one user; add one with: remuda users add FILE NAME")
        self._nobody = hashed(secrets.token_urlsafe(16))

    def __len__(self) -> int:
        return len(self._users)

    def __iter__(self) -> Iterator[User]:
        return (user for user, _ in self._users.values())

    @property
    def vhosts(self) -> list[str]:
        """Every vhost that somebody may enter."""
        return sorted({vhost for user, _ in self._users.values() for vhost in user.vhosts})

    def find(self, name: str) -> User | None:
        """The user of this name, as the file has it now."""
        return self._users.get(name, (None, ""))[0]

    def kept(self, name: str) -> str:
        """A user's password as it is kept."""
        return self._users.get(name, (None, ""))[1]

    def check(self, name: str, password: str) -> User | None:
        """The user, if the password is right. Slow by design: call it in a thread."""
        self.refresh()
        user, kept = self._users.get(name, (None, self._nobody))
        digest = hashlib.blake2b(_encoded(password), key=self._secret).digest()
        right, known = self._right.get(name, ("", b""))
        if user is not None and right == kept and hmac.compare_digest(known, digest):
            return user
        if not _matches(password, kept) or user is None:
            return None
        self._right[name] = kept, digest
        return user

    def refresh(self, *, force: bool = False) -> None:
        """Read the file again if it has changed. A file that cannot be read changes nothing."""
        with self._refreshing:
            if self.path is None or self._watched is None or not (self._watched.changed() or force):
                return
            try:
                read = dict(_read_users(self.path))
            except InvalidOption as error:
                _log.error("%s; the users of before are kept", error)
                return
            before = self._users
            for name, (user, password) in read.items():
                if name in before and before[name][0] == user:
                    read[name] = before[name][0], password  # who compares them finds the same
            self._users = read
            self._right = {name: one for name, one in self._right.items() if name in read}
            _log.info("%s was read again: %d users", os.fspath(self.path), len(read))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Users:
        return cls((one for _, one in _read_users(path)), path)


def hashed(password: str) -> str:
    """A password as the file stores it."""
    salt = secrets.token_bytes(2 * _SALT)
    digest = _digest(password, salt, _COST, _BLOCK, 1)
    return f"scrypt:{_COST}:{_BLOCK}:1:{_text(salt)}:{_text(digest)}"


def add_user(
    path: str | os.PathLike[str],
    name: str,
    password: str,
    vhosts: Mapping[str, Mapping[str, str]],
    tags: Iterable[str] | None = None,
) -> bool:
    """Add a user to a file, or set the password, these vhosts and the tags of the one there is; returns whether it is
    new. Other vhosts of the user stay."""
    if len(password) < MIN_PASSWORD:
        raise InvalidOption(f"a password needs at least {MIN_PASSWORD} characters")
    return change_user(path, name, kept=hashed(password), vhosts=vhosts, tags=tags)


def change_user(
    path: str | os.PathLike[str],
    name: str,
    *,
    kept: str | None = None,
    vhosts: Mapping[str, Mapping[str, str] | None] = _UNCHANGED,
    tags: Iterable[str] | None = None,
) -> bool:
    """Change what is given and leave the rest; a vhost with None is taken away. Returns whether the user is new.

    `kept` is a password as `hashed` returns it, or an empty text for a user who cannot log in by password."""
    if not isinstance(name, str) or not name or not name.isprintable() or len(name.encode()) > 64:
        raise InvalidOption(f"a user's name is 1 to 64 bytes of printable text, not {shown(name)}")
    with locked(path):
        entries = _entries(path) if Path(path).exists() else {}
        new = name not in entries
        if new and kept is None:
            raise no_user(path, name)
        entry: dict[str, Any] = {"vhosts": {}} if new else {"vhosts": {"/": EVERYTHING}, **entries[name]}
        if kept is not None:
            entry["password"] = kept
        if tags is not None:
            entry["tags"] = sorted(set(tags))
        granted = {**entry["vhosts"], **{vhost: one and dict(one) for vhost, one in vhosts.items()}}
        entry["vhosts"] = {vhost: one for vhost, one in granted.items() if one is not None}
        _read_user(path, name, entry)
        entries[name] = entry
        _write(path, entries)
    return new


def remove_user(path: str | os.PathLike[str], name: str) -> None:
    with locked(path):
        entries = _entries(path)
        if entries.pop(name, None) is None:
            raise no_user(path, name)
        _write(path, entries)


def no_user(path: str | os.PathLike[str], name: str) -> InvalidOption:
    return InvalidOption(f"there is no user {name!r} in {os.fspath(path)!r}; add one with: remuda users add")


def list_users(path: str | os.PathLike[str]) -> dict[str, dict[str, dict[str, str]]]:
    """By user and vhost, what is granted."""
    return {
        user.name: {
            vhost: {access: one.pattern for access, one in granted.items()} for vhost, granted in user.vhosts.items()
        }
        for _, (user, _) in _read_users(path)
    }


def _read_users(path: str | os.PathLike[str]) -> Iterator[tuple[str, tuple[User, str]]]:
    return ((name, _read_user(path, name, entry)) for name, entry in _entries(path).items())


def _entries(path: str | os.PathLike[str]) -> dict[str, Any]:
    where = os.fspath(path)
    content, _ = read_toml(path, "users file")
    users = content.get("users")
    if not isinstance(users, dict):
        raise InvalidOption(f"{where!r} has no [users]; add one with: remuda users add {where} NAME")
    return users


def _read_user(path: str | os.PathLike[str], name: str, entry: Any) -> tuple[User, str]:
    where = f"user {name!r} in {os.fspath(path)!r}"
    if not isinstance(entry, dict) or set(entry) - {"password", "vhosts", "tags"}:
        raise InvalidOption(f"{where} must have a password, vhosts and tags, and nothing else")
    password, vhosts = entry.get("password"), entry.get("vhosts", {"/": EVERYTHING})
    if not isinstance(password, str) or (password and not _is_kept(password)):
        raise InvalidOption(f"{where}: the password must be one that `remuda users add` wrote")
    if not isinstance(vhosts, dict):
        raise InvalidOption(f"{where}: vhosts must be a table of vhosts")
    tags = entry.get("tags", [])
    if not isinstance(tags, list) or any(tag not in TAGS for tag in tags):
        raise InvalidOption(f"{where}: tags must be a list of {', '.join(TAGS)}, not {shown(tags)}")
    patterns = {vhost: _patterns(where, vhost, granted) for vhost, granted in vhosts.items()}
    return User(name, patterns, tags=tuple(tags)), password


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
    """Check the name of a vhost: any text that is not too long."""
    if not isinstance(name, str) or not name or not is_storable(name) or len(name.encode()) > MAX_VHOST_BYTES:
        raise InvalidOption(f"a vhost's name is 1 to {MAX_VHOST_BYTES} bytes of text, not {shown(name)}")
    return name


def _write(path: str | os.PathLike[str], entries: Mapping[str, Any]) -> None:
    lines = ["# Written by `remuda users`. Passwords are scrypt hashes; patterns are regular expressions.", "[users]"]
    for name, entry in entries.items():
        lines += ["", f"[users.{_quoted(name)}]", f"password = {_quoted(entry['password'])}"]
        if entry.get("tags"):
            lines.append(f"tags = [{', '.join(map(_quoted, entry['tags']))}]")
        if not entry.get("vhosts", True):
            lines.append("vhosts = {}")
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


def _is_kept(text: str) -> bool:
    return _parts(text) is not None or _rabbit_parts(text) is not None


def from_rabbitmq(hashed_password: str, algorithm: str) -> str:
    """A password hash of definitions, as the file stores it."""
    if algorithm == _OWN_HASHING and _parts(hashed_password) is not None:
        return hashed_password
    kept = f"{algorithm.removeprefix('rabbit_password_hashing_')}:{hashed_password}" if hashed_password else ""
    if kept and _rabbit_parts(kept) is None:
        raise InvalidOption(f"a password hash of {algorithm!r} cannot be used; give the user a new password")
    return kept


def to_rabbitmq(kept: str) -> tuple[str, str]:
    """A password hash and its algorithm as definitions name them. RabbitMQ itself cannot check Remuda's own."""
    if _rabbit_parts(kept) is None:
        return kept, _OWN_HASHING
    kind, _, digest = kept.partition(":")
    return digest, f"rabbit_password_hashing_{kind}"


def _rabbit_parts(kept: str) -> tuple[str, bytes, bytes] | None:
    """The algorithm, salt and digest of a password hash that comes from RabbitMQ."""
    kind, _, encoded = kept.partition(":")
    if kind not in _OF_RABBITMQ:
        return None
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    return (kind, raw[:4], raw[4:]) if len(raw) == 4 + hashlib.new(kind).digest_size else None


def _matches(password: str, kept: str) -> bool:
    foreign = _rabbit_parts(kept)
    if foreign is not None:
        kind, salt, digest = foreign
        return hmac.compare_digest(hashlib.new(kind, salt + _encoded(password)).digest(), digest)
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
