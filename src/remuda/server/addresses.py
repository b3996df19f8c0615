"""Where a server listens, and whether only this machine can reach it there."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, NamedTuple

from remuda.model.errors import InvalidOption


class Listen(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def shown_address(peer: Any) -> str:
    """A socket's address as a log shows it."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return str(peer or "nowhere")
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_address(text: str, default_port: int | None = None, *, option: str = "--listen", usual: int = 0) -> Listen:
    """Read HOST:PORT, :PORT, [::1]:PORT or a port alone; with a default port, also a host alone."""
    host, colon, number = text.rpartition(":")
    alone = not number.isdecimal() if not colon else text.count(":") > 1 and not host.startswith("[")
    if alone and text and default_port is not None:
        host, number = text, str(default_port)
    if not number.isascii() or not number.isdecimal() or int(number) > 65535:
        shown = default_port or usual
        raise InvalidOption(f"{option} takes HOST:PORT, such as 127.0.0.1:{shown} or 0.0.0.0:{shown}, not {text!r}")
    return Listen(host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(number))
