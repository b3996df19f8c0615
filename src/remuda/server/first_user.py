"""The first user and vhost, from the environment: a server in a container can be used without another command."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from remuda.model.errors import InvalidOption
from remuda.server.users import EVERYTHING, change_user, check_vhost, hashed

_log = logging.getLogger("remuda.server")
_USER: Final = "REMUDA_DEFAULT_USER"
_PASSWORD: Final = "REMUDA_DEFAULT_PASS"
_VHOST: Final = "REMUDA_DEFAULT_VHOST"


def first_user(data: str, users: str | None) -> str | None:
    """The users file to use. With a user in the environment, and no file yet, it is made with that user in it."""
    name = from_environment(_USER)
    if name is None:
        return users
    path = Path(users) if users is not None else Path(data).with_name(f"{Path(data).name}.users.toml")
    if path.exists():
        return str(path)  # the environment says who comes first, and not who is there now
    password = from_environment(_PASSWORD)
    if not password:
        raise InvalidOption(f"{_USER} needs a password: set {_PASSWORD}, or {_PASSWORD}_FILE for a secret in a file")
    vhost = check_vhost(from_environment(_VHOST) or "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    change_user(path, name, kept=hashed(password), vhosts={vhost: EVERYTHING}, tags=["administrator"])
    _log.info("%s was made with the user %r of %s, an administrator of vhost %r", path, name, _USER, vhost)
    return str(path)


def from_environment(variable: str) -> str | None:
    """A variable's value or, for secrets, the first line of the file that VARIABLE_FILE names."""
    value, file = os.environ.get(variable), os.environ.get(f"{variable}_FILE")
    if value and file:
        raise InvalidOption(f"{variable} and {variable}_FILE contradict each other; set one of them")
    if not file:
        return value or None
    try:
        return Path(file).read_text("utf-8").partition("\n")[0].strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{variable}_FILE, {file!r}, cannot be read: {error}") from None
