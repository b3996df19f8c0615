"""One request of the management API, and how it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.server.amqp.amqp_server import AmqpServer
from remuda.server.amqp.protocol.vhosts import VHost
from remuda.server.users import ACCESSES, User, Users

_SEES_ALL: Final = frozenset({"administrator", "monitoring"})
_SETS_POLICIES: Final = frozenset({"administrator", "policymaker"})


class Refusal(Exception):
    """An answer other than success, as RabbitMQ gives it."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.body = {"error": error, "reason": reason}


def not_found() -> Refusal:
    return Refusal(404, "Object Not Found", "Not Found")


def bad_request(reason: str) -> Refusal:
    return Refusal(400, "bad_request", reason)


class Answer(msgspec.Struct, frozen=True):
    """An answer: its status, and what it holds as JSON."""

    status: int = 200
    body: Any = None
    location: str | None = None
    text: str | None = None
    """Plain text instead of JSON."""


CREATED: Final = Answer(201)
DONE: Final = Answer(204)


class Call(msgspec.Struct):
    """Who asks for what. `path` has the variable parts of the address, by name."""

    server: AmqpServer
    user: User
    path: dict[str, str]
    query: dict[str, str]
    raw: bytes
    reason: str = ""
    """Why, in the caller's words: the header X-Reason."""

    def json(self) -> dict[str, Any]:
        """The body, which must be a JSON object; an empty one is an object without members."""
        try:
            found = msgspec.json.decode(self.raw or b"{}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise bad_request(f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise bad_request("the body must be a JSON object")
        return found

    @property
    def users(self) -> list[User]:
        return list(self.server.users or ())

    def find_user(self, name: str) -> User | None:
        return None if self.server.users is None else self.server.users.find(name)

    @property
    def is_administrator(self) -> bool:
        return self.user.everywhere or "administrator" in self.user.tags

    def require_administrator(self) -> None:
        if not self.is_administrator:
            raise _not_allowed("Not administrator user")

    def require_monitoring(self) -> None:
        """What belongs to no vhost is for those who may see all of them."""
        if not self.sees_all:
            raise _not_allowed("Not monitor user")

    def require_policymaker(self) -> None:
        if not (self.user.everywhere or _SETS_POLICIES & set(self.user.tags)):
            raise _not_allowed("Not policymaker user")

    @property
    def sees_all(self) -> bool:
        return self.user.everywhere or bool(_SEES_ALL & set(self.user.tags))

    def sees(self, vhost: str) -> bool:
        return self.sees_all or self.user.enters(vhost)

    def vhosts(self) -> list[VHost]:
        """The vhost that the address names, or all that the user may see."""
        if "vhost" in self.path:
            return [self.vhost()]
        return [vhost for name, vhost in sorted(self.server.topology.vhosts.items()) if self.sees(name)]

    def vhost(self) -> VHost:
        """The vhost that the address names."""
        name = self.path["vhost"]
        found = self.server.topology.vhosts.get(name)
        if found is None:
            raise not_found()
        if not self.sees(name):
            raise _not_allowed("User not authorised to access virtual host")
        return found

    def entered(self) -> VHost:
        """The same for a request that acts in it: an administrator, too, must have been let in."""
        vhost = self.vhost()
        if not self.user.enters(vhost.name):
            raise _not_allowed("User not authorised to access virtual host")
        return vhost


def users_of(server: AmqpServer) -> Users:
    """Users that can be changed: those of a file."""
    if server.users is None or server.users.path is None:
        raise InvalidOption("this server has no users; start it with --users FILE or REMUDA_DEFAULT_USER")
    return server.users


def _not_allowed(reason: str) -> Refusal:
    return Refusal(401, "not_authorized", reason)


def granted(given: Mapping[str, Any]) -> dict[str, str]:
    """The three patterns of a permission."""
    for access in ACCESSES:
        if not isinstance(given.get(access), str):
            raise bad_request(f"key_missing: {access}")
    return {access: given[access] for access in ACCESSES}


def tags_of(given: Any) -> list[str]:
    """A user's tags: a list, or a text with commas."""
    found = given.split(",") if isinstance(given, str) else given
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InvalidOption("tags must be a list, or a text with commas")
    return [one.strip() for one in found if one.strip()]
