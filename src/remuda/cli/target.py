"""A command's target: a directory, a URL, or an application's bus."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Final

from remuda.bus.bus import Bus
from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.values.urls import AMQP, AMQPS, REMUDA, parse_url

_APP: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_app(target: str) -> bool:
    """Whether this is written like `module:variable`."""
    return _APP.fullmatch(target) is not None and not os.path.exists(target)


def load_bus(app: str) -> Bus:
    """The bus that `module:variable` names, imported as if by a script in this directory."""
    found = load_object(app, "bus")
    if not isinstance(found, Bus):
        raise InvalidOption(f"{app} is a {type(found).__name__}, not a Bus{_hint(app.partition(':')[0])}")
    return found


def load_object(app: str, noun: str) -> object:
    """What `module:variable` names, imported as if by a script in this directory."""
    module_name, _, path = app.partition(":")
    if not _APP.fullmatch(app):
        raise InvalidOption(
            f"{app!r} does not name a {noun}; write module:variable, like app:{noun} for the variable {noun} in app.py"
        )
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    found: object = _import(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise InvalidOption(f"module {module_name} has no {path}{_hint(module_name) if noun == 'bus' else ''}")
        found = getattr(found, name)
    return found


def directory_of(target: str) -> Path:
    """The directory that holds a target's messages; it must exist."""
    url = parse_url(load_bus(target).url if is_app(target) else target)
    if not url.is_directory:
        raise InvalidOption(f"{url} is not a directory; this command reads the directory of an embedded broker")
    path = Path(url.path)
    try:
        found = path.is_dir()
    except OSError as error:
        raise InvalidOption(f"{str(path)[:100]!r} is not a directory: {error.strerror}") from None
    if not found:
        raise InvalidOption(f"there is no directory {str(path)!r}; nothing was created. Check the path")
    return path


def place_of(target: str) -> str:
    """Where a target's broker is: an existing directory, or a URL."""
    url = str(load_bus(target).url) if is_app(target) else target
    return url if parse_url(url).scheme in (AMQP, AMQPS, REMUDA) else str(directory_of(target))


def shown_target(target: str) -> str:
    """The target as it was typed, without its password."""
    url = None if is_app(target) else parse_url(target)
    return target if url is None or url.password is None else str(url)


def is_elsewhere(place: str) -> bool:
    """Whether the broker has to be asked, since its files are not here."""
    return not parse_url(place).is_directory


def is_rabbitmq(place: str) -> bool:
    return parse_url(place).scheme in (AMQP, AMQPS)


def check_exists(target: str, otherwise: str) -> None:
    """Raise if the directory does not exist: its name may be a typo. `otherwise` says what was not done."""
    if is_app(target):
        return
    url = parse_url(target)
    if url.is_directory and not os.path.isdir(url.path):
        raise InvalidOption(f"there is no directory {target!r}; {otherwise}. --create creates it")


def log_of(target: str) -> str:
    """Where the event log of a target can be read: an existing directory, or the URL of a broker with a stream."""
    url = str(load_bus(target).url) if is_app(target) else target
    return url if parse_url(url).scheme in (AMQP, AMQPS) else str(directory_of(target))


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidOption(
                f"there is no module {name} here; run this in the directory that {name} is in"
            ) from None
        raise _broken(name, error) from error
    except RemudaError:
        raise
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> InvalidOption:
    """An error in one line that says where the application's own code failed."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
    where = os.path.relpath(file) if file and os.path.exists(file) else file
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return InvalidOption(f"module {name} cannot be loaded: {type(error).__name__}: {text} ({where}, line {line})")


def _hint(module_name: str) -> str:
    names = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, Bus)]
    if not names:
        return "; the module has no bus"
    return f"; did you mean {' or '.join(f'{module_name}:{name}' for name in names)}?"
