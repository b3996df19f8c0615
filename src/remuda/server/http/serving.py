"""Serves the application on a socket, if that is safe."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.values.extras import MissingExtra
from remuda.server.addresses import Listen as Listen
from remuda.server.addresses import read_address
from remuda.server.certificates import Certificates
from remuda.server.http.mounting import require_extra
from remuda.server.http.security.users import Users

if TYPE_CHECKING:
    import uvicorn

    from remuda.server.http.security.guard import Guard

DEFAULT: Final = "127.0.0.1:8321"


def read_listen(text: str, option: str = "--listen") -> Listen:
    """`host:port`, `:port`, `[::1]:port` or a port alone."""
    return read_address(text, option=option, usual=8321)


def check_safe(listen: Listen, users: Users | None, option: str = "--users") -> None:
    """Refuse to listen to other machines without a login."""
    if users is None and not listen.is_local:
        raise InvalidOption(
            f"{listen.host} can be reached from other machines, and there is no login; create a user with "
            f"remuda dashboard-user users.toml NAME, then add {option} users.toml. Nothing was started"
        )


def names_of(listen: Listen, given: Iterable[str]) -> list[str]:
    """The host names that requests may use."""
    own = [] if listen.is_local else [socket.gethostname(), socket.getfqdn()]
    return [*own, listen.host, *given]


class Server:
    """An application on a socket, in this thread or in the background."""

    def __init__(
        self,
        app: Guard | Callable[..., Any],
        listen: Listen,
        *,
        tls: Certificates | None = None,
        certificate: str | None = None,
        key: str | None = None,
        option: str = "--listen",
    ) -> None:
        require_extra()
        try:
            import uvicorn
        except ImportError as error:
            raise MissingExtra("The HTTP API and the dashboard", "server") from error
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((listen.host, listen.port))
        except OSError as error:
            self._socket.close()
            raise RemudaError(
                f"cannot listen on {listen.host}:{listen.port}: {error.strerror}; choose another address with {option}"
            ) from error
        self._socket.listen(2048)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2,
            ssl_certfile=certificate, ssl_keyfile=key, proxy_headers=False, h11_max_incomplete_event_size=64 << 10,
        )  # fmt: skip
        if tls is not None:
            config.load()
            config.ssl = tls.context  # which serves a certificate that was renewed
        self._server: uvicorn.Server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None
        scheme = "https" if certificate or tls is not None else "http"
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{scheme}://{shown}:{port}/"

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM, and return then, so that the caller can close its bus."""
        try:
            with self._ended_by_signals():
                self._server.run([self._socket])
        finally:
            self._socket.close()

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        """Catch the signal that ends the server: uvicorn raises it again afterwards, which would end the process before
        its bus is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(*_: object) -> None:
            self._server.should_exit = True

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self) -> None:
        """Serve in the background; returns when requests are answered."""
        self._thread = threading.Thread(target=self.run, name="remuda-http-server", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RemudaError("the HTTP server did not start; see its log")
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10)
