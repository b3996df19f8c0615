"""Access control: hosts, sessions, CSRF, roles, a rate-limited login, and security headers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import inspect
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remuda.server.http.api.problems import Problem
from remuda.server.http.pages.render import page
from remuda.server.http.security.users import Role, User, UserEntry, Users

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NAMES: Final = frozenset(name for name, _ in _HEADERS)
_UNCACHED: Final = (b"cache-control", b"no-store")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SESSION_SECONDS: Final = 12 * 3600
_SESSIONS: Final = 10_000
_TRIES: Final = 5
_TRIES_WITHIN: Final = 60.0
_BASIC_KEPT: Final = 300.0
LOCAL: Final = User("local", Role.OPERATOR)

Identify = Callable[[Request], User | Awaitable[User | None] | None]
"""For an application with its own login: the user of a request, or None; a function or a coroutine function."""


class Guard:
    """Wraps the application; only requests that are allowed reach it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        users: Users | None = None,
        identify: Identify | None = None,
        hosts: Iterable[str] | None = None,
    ) -> None:
        self._app = app
        self._users = users
        self.notes: dict[str, list[tuple[str, str]]] = {}
        """What each session is told on the next page that it sees."""
        self._identify = identify
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, tuple[UserEntry, float]] = {}
        self._known: dict[bytes, tuple[UserEntry, float]] = {}
        """By a login that was right, or a session: as whom, and until when. A user who was changed logs in again."""
        self._failures: dict[str, list[float]] = {}
        self._hashing = asyncio.Semaphore(2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        fresh: str | None = None
        try:
            self._check_host(request)
            path = _path(scope)
            cookie = request.cookies.get(_cookie_name(scope))
            user = None if path in ("/health/live", "/health/ready") else await self._who(request, cookie)
            if user is None and not _is_open(path):
                await self._ask_to_log_in(path, request, scope, receive, send)
                return
            is_page = not path.startswith("/api/")
            if is_page and (cookie is None or len(cookie) != 43):
                cookie = fresh = secrets.token_urlsafe(32)
            self._check_origin(request)
            state = scope.setdefault("state", {})
            state.update(user=user, session=cookie or "", guard=self, csrf=self.csrf(cookie or "") if is_page else "")
            if user is not None and request.method not in _SAFE and path != "/logout" and not user.may(Role.OPERATOR):
                raise Problem(403, "Forbidden", f"{user.name} is a viewer; only an operator may do this")
        except Problem as problem:
            await problem.response()(scope, receive, _with_headers(send, scope, None))
            return
        await self._app(scope, receive, _with_headers(send, scope, fresh))

    def csrf(self, session: str) -> str:
        """The token that a form of this session must carry."""
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()

    def check_csrf(self, session: str, token: object) -> None:
        if not isinstance(token, str) or not hmac.compare_digest(self.csrf(session).encode(), token.encode()):
            raise Problem(403, "Forbidden", "this form is not from a page of this server; load the page again")

    @property
    def has_login(self) -> bool:
        return self._users is not None

    async def login(self, request: Request, name: str, password: str) -> Response:
        """Check a password and begin a session."""
        user = await self._check_password(request, name, password)
        entry = None if user is None or self._users is None else self._users.entry(user.name)
        if entry is None:
            raise Problem(401, "Not logged in", "name or password is wrong")
        now = time.monotonic()
        self._sessions = {key: kept for key, kept in self._sessions.items() if kept[1] > now}
        while len(self._sessions) >= _SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[_hash(session)] = (entry, now + _SESSION_SECONDS)
        answer = RedirectResponse(f"{request.scope.get('root_path', '')}/", 303)
        answer.headers["Set-Cookie"] = _cookie(request.scope, session)
        return answer

    def logout(self, request: Request) -> Response:
        self._sessions.pop(_hash(request.state.session), None)
        return RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)

    async def _who(self, request: Request, cookie: str | None) -> User | None:
        if self._identify is not None:
            told = self._identify(request)
            return await told if inspect.isawaitable(told) else told
        if self._users is None:
            if not _is_local(request):
                raise Problem(
                    403,
                    "Forbidden",
                    "without a users file this server answers only its own machine; start it with --users FILE",
                )
            return LOCAL
        if cookie is not None:
            found = self._sessions.get(_hash(cookie))
            if found is not None and found[1] > time.monotonic() and self._stands(found[0]):
                if request.method not in _SAFE and _path(request.scope).startswith("/api/"):
                    self.check_csrf(cookie, request.headers.get("x-csrf-token"))
                return found[0].user
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            return await self._basic(request, given.strip())
        return None

    async def _basic(self, request: Request, given: str) -> User | None:
        # Checking a password is slow by design, so one that was right is recognised by its keyed hash for a while.
        mark = hmac.new(self._secret, given.encode(), hashlib.sha256).digest()
        known = self._known.get(mark)
        now = time.monotonic()
        if known is not None and known[1] > now and self._stands(known[0]):
            return known[0].user
        try:
            name, separator, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        user = await self._check_password(request, name, password) if separator else None
        entry = None if user is None or self._users is None else self._users.entry(user.name)
        if entry is not None:
            self._known = {key: kept for key, kept in self._known.items() if kept[1] > now}
            self._known[mark] = (entry, now + _BASIC_KEPT)
        return user

    def _stands(self, entry: UserEntry) -> bool:
        """Whether a user is still as at the login."""
        return self._users is not None and self._users.entry(entry.user.name) == entry

    async def _check_password(self, request: Request, name: str, password: str) -> User | None:
        if self._users is None:
            return None
        now = time.monotonic()
        keys = [f"name {name[:64]}", f"from {request.client.host if request.client else ''}"]
        self._failures = {key: kept for key, times in self._failures.items() if (kept := _since(times, now))}
        for key, tries in zip(keys, (_TRIES, 4 * _TRIES), strict=True):
            if len(self._failures.get(key, ())) >= tries:
                raise Problem(
                    429, "Too many attempts", "too many wrong passwords; wait a minute", headers={"Retry-After": "60"}
                )
        # Counted before the password is checked, so that many attempts at once do not get around the limit.
        for key in keys:
            self._failures.setdefault(key, []).append(now)
        async with self._hashing:
            user = await asyncio.to_thread(self._users.check, name[:256], password[:1024])
        if user is not None:
            for key in keys:
                self._failures.pop(key, None)
        return user

    async def _ask_to_log_in(self, path: str, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response
        root = scope.get("root_path", "")
        if path.startswith("/api/") or path == "/metrics" or request.method not in _SAFE:
            challenge = {"WWW-Authenticate": 'Basic realm="Remuda", charset="UTF-8"'} if self._users else {}
            answer = Problem(401, "Not logged in", "log in first", headers=challenge).response()
        elif request.headers.get("hx-request"):
            where = {"HX-Redirect": f"{root}/login"} if self._users else {"HX-Refresh": "true"}
            answer = Response(status_code=204, headers=where)
        elif self._users is None:
            answer = page(request, "error.html", 401, detail="The application does not let you in here.", code=401)
        else:
            answer = RedirectResponse(f"{root}/login", 303)
        await answer(scope, receive, _with_headers(send, scope, None))

    def _check_host(self, request: Request) -> None:
        hosts = request.headers.getlist("host")
        name = _host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None:
            raise Problem(400, "Bad request", "a request needs one Host header")
        if name == "localhost" or _is_address(name):
            return
        if self._hosts is None:
            # Where every request must log in, a foreign name is of no use to an attacker.
            if self._users is not None or self._identify is not None:
                return
        elif name in self._hosts:
            return
        raise Problem(403, "Forbidden", f"this server is not known as {name!r}; start it with --host {name} if it is")

    def _check_origin(self, request: Request) -> None:
        if request.method in _SAFE:
            return
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        foreign = origin is not None and _origin_host(origin) != request.headers["host"].lower()
        if foreign or site in ("cross-site", "same-site"):
            raise Problem(403, "Forbidden", "requests from pages of other sites are refused")


def _path(scope: Scope) -> str:
    root: str = scope.get("root_path", "")
    path: str = scope["path"]
    return path[len(root) :] if root and path.startswith(root) else path


def _is_open(path: str) -> bool:
    return path in ("/login", "/health/live", "/health/ready") or path.startswith("/static/")


def _is_local(request: HTTPConnection) -> bool:
    if "forwarded" in request.headers or "x-forwarded-for" in request.headers:
        return False
    if request.client is None:
        return True
    return _is_loopback(request.client.host)


@lru_cache(1000)
def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(1000)
def _host_name(host: str) -> str | None:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return None
    return name.lower() if name and "@" not in host and "/" not in host else None


def _origin_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


@lru_cache(1000)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        return False


def _cookie_name(scope: Scope) -> str:
    # Cookies ignore ports, so two servers on one machine need two names.
    server = scope.get("server")
    return f"remuda_{server[1] if server and server[1] else 0}"


def _cookie(scope: Scope, session: str) -> str:
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    path = scope.get("root_path") or "/"
    return (
        f"{_cookie_name(scope)}={session}; Path={path}; HttpOnly; SameSite=Strict; Max-Age={_SESSION_SECONDS}{secure}"
    )


def _with_headers(send: Send, scope: Scope, session: str | None) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            headers = [pair for pair in message["headers"] if pair[0] not in _NAMES] if given & _NAMES else None
            headers = message["headers"] if headers is None else headers
            headers += _HEADERS
            if b"cache-control" not in given:
                headers.append(_UNCACHED)
            if session is not None and b"set-cookie" not in given:
                headers.append((b"set-cookie", _cookie(scope, session).encode("latin-1")))
            message["headers"] = headers
        await send(message)

    return sending


def _hash(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


def _since(times: list[float], now: float) -> list[float]:
    return [moment for moment in times if now - moment < _TRIES_WITHIN]
