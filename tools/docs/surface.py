"""What users may import, with its signatures: docs/public-api.txt, and the reference of the documentation site.

    python -m tools.docs.surface

The modules are listed in `remuda.public.MODULES`; everything else is internal and may move.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

from remuda.public import MODULES

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "docs/public-api.txt"
_HEAD: Final = "# What users may import. Written by `make docs`; a change here is a change of the public API.\n"
_OWN: Final = ("remuda", "pyspark_remuda")


class Member(NamedTuple):
    """A function, a method or a property."""

    name: str
    signature: str
    doc: str


class Name(NamedTuple):
    """Something that a module offers."""

    name: str
    kind: str
    signature: str
    doc: str
    members: list[Member]

    def line(self) -> str:
        return f"{self.kind} {self.name}{self.signature}"


def names(module: ModuleType) -> Iterator[Name]:
    """Everything that a public module offers, by name."""
    public = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    for name in sorted(public):
        yield _name(name, getattr(module, name))


def _name(name: str, value: Any) -> Name:
    if not inspect.isclass(value):
        if not callable(value) or not hasattr(value, "__name__"):
            return Name(name, "value", "", "", [])
        kind = "async def" if inspect.iscoroutinefunction(value) else "def"
        return Name(name, kind, signature(value), _doc(value), [])
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object and base.__name__ != "Generic")
    if issubclass(value, enum.Enum):
        members = [Member(one.name, f" = {one.value!r}", "") for one in value]
    elif issubclass(value, BaseException) and value.__init__ in (Exception.__init__, BaseException.__init__):
        members = []
    else:
        members = [*_members(value)]
    return Name(name, "class", f"({bases})" if bases else "", _doc(value), members)


def _members(cls: type) -> Iterator[Member]:
    if "__init__" in {name for one in _own(cls) for name in vars(one)} or hasattr(cls, "__struct_fields__"):
        yield Member("", signature(cls), "")
    found: dict[str, Any] = {}
    for one in reversed(_own(cls)):
        found |= {name: value for name, value in vars(one).items() if not name.startswith("_")}
    for name, value in sorted(found.items()):
        if isinstance(value, property):
            yield Member(
                name, ": " + _text(inspect.signature(value.fget).return_annotation) if value.fget else "", _doc(value)
            )
        elif isinstance(value, classmethod | staticmethod):
            yield Member(name, signature(getattr(cls, name)), _doc(value.__func__))
        elif inspect.isfunction(value) or type(value).__name__ == "cython_function_or_method":
            yield Member(name, signature(value, drop_first=True), _doc(value))
        elif inspect.ismemberdescriptor(value) or name in getattr(cls, "__annotations__", {}):
            yield Member(name, "", "")


def _own(cls: type) -> list[type]:
    return [one for one in cls.__mro__ if one.__module__.split(".")[0] in _OWN]


def signature(value: Any, *, drop_first: bool = False) -> str:
    """As it would be written, the same in every version of Python."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(…)"
    parts: list[str] = []
    kinds = inspect.Parameter
    starred = False
    last = None
    for parameter in [*found.parameters.values()][1 if drop_first else 0 :]:
        if last is kinds.POSITIONAL_ONLY and parameter.kind is not last:
            parts.append("/")
        if parameter.kind is kinds.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or parameter.kind is kinds.VAR_POSITIONAL
        mark = "*" if parameter.kind is kinds.VAR_POSITIONAL else "**" if parameter.kind is kinds.VAR_KEYWORD else ""
        text = mark + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_text(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}" if ":" in text else f"={_default(parameter.default)}"
        parts.append(text)
        last = parameter.kind
    if last is kinds.POSITIONAL_ONLY:
        parts.append("/")
    returned = found.return_annotation
    silent = returned is found.empty or inspect.isclass(value)
    return f"({', '.join(parts)})" + ("" if silent else f" -> {_text(returned)}")


def _returned(value: property) -> str:
    return f": {_text(inspect.signature(value.fget).return_annotation)}" if value.fget else ""


def _text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return re.sub(r"Annotated\[(\w+), Help\([^)]*\)\]", r"\1", annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if get_origin(annotation) is Annotated:
        return _text(get_args(annotation)[0])
    if inspect.isclass(annotation) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", str(annotation)).replace("NoneType", "None")


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_default, value)))}}}"
    plain = type(value).__module__ == "builtins" and isinstance(value, str | int | float | bytes | tuple)
    return repr(value) if value is None or plain else "…"


def _doc(value: Any) -> str:
    own = value.__doc__ if isinstance(getattr(value, "__doc__", None), str) else ""
    if inspect.isclass(value) and "__doc__" not in vars(value):
        own = ""
    return inspect.cleandoc(own or "")


def modules() -> Iterator[tuple[str, list[Name]]]:
    for module in MODULES:
        yield module, [*names(importlib.import_module(module))]


def page() -> str:
    """The file that a test compares."""
    lines = [_HEAD]
    for module, found in modules():
        lines.append(f"## {module}")
        for name in found:
            lines.append(name.line())
            lines += [f"    {member.name}{member.signature}" for member in name.members]
        lines.append("")
    lines.append("## Options that calls above take by name")
    for title, keys in sorted(options().items()):
        lines += [title, *(f"    {key}: {kind}" for key, kind in sorted(keys.items()))]
    return "\n".join([*lines, ""])


def options() -> dict[str, dict[str, str]]:
    """The typed dictionaries that stand for keyword arguments (`**options: Unpack[SubscribeKwargs]`)."""
    found: dict[str, dict[str, str]] = {}
    for module in MODULES:
        for own in vars(importlib.import_module(module)).values():
            for _, value in inspect.getmembers(own, inspect.isfunction) if inspect.isclass(own) else [("", own)]:
                for annotation in getattr(value, "__annotations__", {}).values():
                    named = re.fullmatch(r"Unpack\[(\w+)\]", annotation) if isinstance(annotation, str) else None
                    kind = getattr(value, "__globals__", {}).get(named[1]) if named else None
                    if named and kind is not None:
                        found[named[1]] = {
                            key: _text(getattr(hint, "__forward_arg__", hint))
                            for one in reversed([kind, *getattr(kind, "__orig_bases__", ())])
                            for key, hint in getattr(one, "__annotations__", {}).items()
                        }
    return found


def reference() -> str:
    """The same for people, with what the docstrings say."""
    lines = ["# Python reference", "", "What may be imported. Everything else is internal, and may move.", ""]
    for module, found in modules():
        lines += [f"## `{module}`", "", inspect.cleandoc(importlib.import_module(module).__doc__ or ""), ""]
        for name in found:
            lines += [f"### {name.name}", "", "```python", name.line(), "```", "", name.doc, ""]
            for member in name.members:
                lines.append(f"- `{member.name or name.name}{member.signature}`")
                lines += ["", *(f"    {line}" for line in member.doc.splitlines())] if member.doc else []
                lines.append("")
    return "\n".join(lines)


def commands() -> str:
    """The command line, command by command, as its help says."""
    from typer.main import get_command

    from remuda.cli.app import app

    lines = [
        "# Command reference",
        "",
        "What `remuda COMMAND --help` prints. [The guide](../command-line.md) has the examples.",
        "",
    ]

    def walk(command: Any, path: str, parent: Any) -> None:
        context = command.make_context(path.rpartition(" ")[2], [], parent=parent, resilient_parsing=True)
        context.terminal_width = context.max_content_width = 100
        if path != "remuda":
            lines.extend([f"## {path}", "", "```text", command.get_help(context), "```", ""])
        for name, sub in sorted(getattr(command, "commands", {}).items()):
            walk(sub, f"{path} {name}", context)

    walk(get_command(app), "remuda", None)
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(page())
