"""Definitions: all that is declared, as one JSON document; and what a server, RabbitMQ too, has exported, taken over.

Taking over goes on past what cannot be had here: the answer lists it, and so does the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from remuda.model.errors import InvalidOption, RemudaError
from remuda.server.amqp.amqp_server import AmqpServer
from remuda.server.amqp.declarations.policies import SETTINGS, WITHOUT_EFFECT, Policy, read_policy
from remuda.server.amqp.local_session import LocalSession
from remuda.server.management.calls import Refusal, granted, tags_of, users_of
from remuda.server.management.changes import bind, exchange_of_json, password_of, queue_of_json, table_of, text_of
from remuda.server.management.parameters import parameter_view
from remuda.server.management.views import Views, policy_view, readable
from remuda.server.shovels.definition import COMPONENT
from remuda.server.users import User, change_user, check_vhost, to_rabbitmq

_log = logging.getLogger("remuda.management")
_ALL = User("definitions", everywhere=True)


async def exported(server: AmqpServer, views: Views, vhost: str | None = None) -> dict[str, Any]:
    """What is declared: of the whole server, with its users, or of one vhost."""
    topology = server.topology
    vhosts = [one for name, one in sorted(topology.vhosts.items()) if vhost in (None, name)]
    queues = [
        {
            "name": one.short(full), "vhost": one.name, "durable": declaration.durable,
            "auto_delete": declaration.auto_delete, "arguments": declaration.arguments,
        }
        for one in vhosts
        for full, declaration in sorted(topology.queues.items())
        if one.holds(full) and not declaration.exclusive
    ]  # fmt: skip
    known = {(queue["vhost"], queue["name"]) for queue in queues}
    exchanges = [
        {
            "name": one["name"], "vhost": one["vhost"], "type": one["type"], "durable": one["durable"],
            "auto_delete": one["auto_delete"], "internal": one["internal"], "arguments": one["arguments"],
        }
        for one in views.exchanges(vhosts)
        if one["name"] and not one["name"].startswith("amq.") and one["name"] != "remuda.topics"
    ]  # fmt: skip
    bindings = [
        {name: value for name, value in one.items() if name != "properties_key"}
        for one in await views.bindings(vhosts)
        if one["source"] and (one["destination_type"] == "exchange" or (one["vhost"], one["destination"]) in known)
    ]
    policies = [
        policy_view(one.name, policy) for one in vhosts for policy in topology.policies.get(one.name, {}).values()
    ]
    limits = server.limits
    found: dict[str, Any] = {
        "rabbit_version": limits.product_version, "rabbitmq_version": limits.product_version,
        "product_name": "Remuda", "product_version": limits.product_version,
        "parameters": [parameter_view(one) for one in server.shovels if vhost in (None, one.shovel.vhost)],
        "policies": policies, "queues": queues, "exchanges": exchanges, "bindings": bindings,
    }  # fmt: skip
    if vhost is not None:
        return found
    users = list(server.users or ())
    return {
        **found, "vhosts": [{"name": one.name} for one in vhosts], "topic_permissions": [], "global_parameters": [],
        "users": [user_view(server, user) for user in users],
        "permissions": [one for user in users for one in permissions_of(user)],
    }  # fmt: skip


def user_view(server: AmqpServer, user: User) -> dict[str, Any]:
    digest, algorithm = to_rabbitmq("" if server.users is None else server.users.kept(user.name))
    return {
        "name": user.name, "password_hash": digest, "hashing_algorithm": algorithm, "tags": list(user.tags),
        "limits": {},
    }  # fmt: skip


def permissions_of(user: User) -> list[dict[str, Any]]:
    return [
        {"user": user.name, "vhost": vhost, **dict.fromkeys(("configure", "write", "read"), ""),
         **{access: "" if one.pattern == "^$" else one.pattern for access, one in patterns.items()}}
        for vhost, patterns in user.vhosts.items()
    ]  # fmt: skip


def read_definitions(path: str) -> dict[str, Any]:
    """A file of definitions, as `rabbitmqctl export_definitions` and the management API write it."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise InvalidOption(f"the definitions in {path!r} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidOption(f"{path!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidOption(f"{path!r} does not hold definitions, as `rabbitmqctl export_definitions` writes them")
    return found


class Import:
    """Takes definitions over, one after the other. `problems` says what could not be had, and why."""

    def __init__(self, server: AmqpServer, vhost: str | None = None) -> None:
        self._server = server
        self._only = vhost
        """The vhost that everything belongs to, for definitions that name none."""
        self.problems: list[str] = []
        self.taken = 0

    async def run(self, definitions: Mapping[str, Any]) -> None:
        for kind, take in (
            ("vhosts", self._vhost), ("users", self._user), ("permissions", self._permission),
            ("exchanges", self._exchange), ("queues", self._queue), ("bindings", self._binding),
        ):  # fmt: skip
            await self._each(kind, definitions, take)
        await self._policies(definitions)
        await self._each("parameters", definitions, self._parameter)
        for kind in ("global_parameters", "topic_permissions"):
            listed = definitions.get(kind)
            for one in listed if isinstance(listed, list) else []:
                name = one.get("name") or one.get("user") if isinstance(one, dict) else one
                if kind == "topic_permissions":
                    self._missed(f"topic permission of {name!r}", "permissions by routing key are not offered")
                elif name not in ("internal_cluster_id", "cluster_name", "cluster_tags"):
                    self._missed(f"parameter {name!r}", "settings of plug-ins do not exist here")
        if self._server.users is not None:
            await asyncio.to_thread(self._server.users.refresh, force=True)
            await self._server.apply_users(self._server.users)
        for problem in self.problems:
            _log.warning("definitions: %s", problem)
        _log.info("definitions: %d taken over, %d not", self.taken, len(self.problems))

    def _missed(self, what: str, why: str) -> None:
        self.problems.append(f"{what}: {why}")

    async def _each(
        self, kind: str, definitions: Mapping[str, Any], take: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        listed = definitions.get(kind) or []
        if not isinstance(listed, list):
            self._missed(kind, "is not a list")
            return
        for one in listed:
            if not isinstance(one, dict):
                self._missed(kind, f"{one!r} is not an object")
                continue
            name = one.get("name") or one.get("user") or one.get("source")
            what = f"{'policy' if kind == 'policies' else kind[:-1]} {name!r}"
            try:
                await take({**one, "vhost": self._only or one.get("vhost", "/")})
                self.taken += 1
            except RemudaError as error:
                self._missed(what, readable(error))
            except Refusal as error:
                self._missed(what, str(error))
            except KeyError as error:
                self._missed(what, f"it has no {error}")

    def _session(self, one: dict[str, Any]) -> LocalSession:
        vhost = self._server.topology.vhosts.get(text_of(one, "vhost"))
        if vhost is None:
            raise InvalidOption(f"there is no vhost {one['vhost']!r}")
        return LocalSession(self._server, _ALL, vhost)

    async def _vhost(self, one: dict[str, Any]) -> None:
        await self._server.topology.add_vhost(check_vhost(one["name"]))

    async def _user(self, one: dict[str, Any]) -> None:
        users = users_of(self._server)
        kept, tags = await asyncio.to_thread(password_of, one), tags_of(one.get("tags", []))
        known = [tag for tag in tags if tag in ("administrator", "monitoring", "policymaker", "management")]
        await asyncio.to_thread(change_user, users.path or "", one["name"], kept=kept, tags=known)
        await asyncio.to_thread(users.refresh, force=True)
        for tag in sorted(set(tags) - set(known)):
            self._missed(f"tag {tag!r} of user {one['name']!r}", "has no meaning here")

    async def _permission(self, one: dict[str, Any]) -> None:
        users = users_of(self._server)
        vhosts = {check_vhost(one["vhost"]): granted(one)}
        await asyncio.to_thread(change_user, users.path or "", one["user"], vhosts=vhosts)

    async def _exchange(self, one: dict[str, Any]) -> None:
        await self._session(one).ask(exchange_of_json(text_of(one, "name"), {"durable": True, **one}))

    async def _queue(self, one: dict[str, Any]) -> None:
        await self._session(one).ask(queue_of_json(text_of(one, "name"), {"durable": True, **one}))

    async def _binding(self, one: dict[str, Any]) -> None:
        source = text_of(one, "source")
        if source:
            session, kind, key = self._session(one), text_of(one, "destination_type"), text_of(one, "routing_key", "")
            await bind(session, source, kind, text_of(one, "destination"), key, table_of(one))

    async def _parameter(self, one: dict[str, Any]) -> None:
        if one["component"] != COMPONENT:
            raise InvalidOption(f"parameters of {one['component']!r} do not exist here, only those of shovels")
        self._session(one)  # there is such a vhost
        await self._server.shovels.put(one["vhost"], text_of(one, "name"), one["value"])

    async def _policies(self, definitions: Mapping[str, Any]) -> None:
        """All of a vhost's together: its queues follow once."""
        found: dict[str, dict[str, Policy]] = {}

        async def take(one: dict[str, Any]) -> None:
            known = self._server.topology.policies.get(one["vhost"], {})
            definition = one.get("definition")
            if isinstance(definition, dict) and (
                kept := {name: definition[name] for name in SETTINGS & set(definition)}
            ):
                for setting in sorted(set(definition) - set(kept)):
                    self._missed(f"{setting} of policy {one.get('name')!r}", "does not exist here")
                one = {**one, "definition": kept}
            policy = read_policy(text_of(one, "name"), one)
            found.setdefault(one["vhost"], dict(known))[policy.name] = policy
            for setting in sorted(WITHOUT_EFFECT & set(policy.definition)):
                self._missed(f"{setting} of policy {policy.name!r}", "has no meaning on one machine")

        await self._each("policies", definitions, take)
        for name, policies in found.items():
            vhost = self._server.topology.vhosts.get(name)
            if vhost is None:
                self._missed(f"policies of vhost {name!r}", "there is no such vhost")
            else:
                await self._server.set_policies(vhost, policies)
