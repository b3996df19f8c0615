"""Runtime parameters in the management API: shovels, and what they do at the moment."""

from __future__ import annotations

from typing import Any

from remuda.server.management.calls import CREATED, DONE, Answer, Call, bad_request, not_found
from remuda.server.management.paging import listed
from remuda.server.management.views import NODE, Views
from remuda.server.shovels.definition import COMPONENT
from remuda.server.shovels.running import RunningShovel, view


def parameters_of(call: Call) -> list[dict[str, Any]]:
    """The parameters that a caller may see, with their secrets: for those who may set them."""
    call.require_policymaker()
    if call.path.get("component", COMPONENT) != COMPONENT:
        return []
    return [parameter_view(one) for one in _seen(call)]


def parameter_view(running: RunningShovel) -> dict[str, Any]:
    shovel = running.shovel
    return {"component": COMPONENT, "vhost": shovel.vhost, "name": shovel.name, "value": shovel.value}


async def parameters(call: Call, views: Views) -> Answer:
    return Answer(body=listed(parameters_of(call), call.query))


async def parameter(call: Call, views: Views) -> Answer:
    name = call.path["name"]
    found = next((one for one in parameters_of(call) if one["name"] == name), None)
    if found is None:
        raise not_found()
    return Answer(body=found)


async def put_parameter(call: Call, views: Views) -> Answer:
    call.require_policymaker()
    vhost, component = call.entered(), call.path["component"]
    if component != COMPONENT:
        raise bad_request(f"component {component} not found; {COMPONENT} is the only one")
    new = await call.server.shovels.put(vhost.name, call.path["name"], call.json().get("value"))
    return CREATED if new else DONE


async def delete_parameter(call: Call, views: Views) -> Answer:
    call.require_policymaker()
    vhost = call.entered()
    if call.path["component"] != COMPONENT or not await call.server.shovels.remove(vhost.name, call.path["name"]):
        raise not_found()
    return DONE


async def shovels(call: Call, views: Views) -> Answer:
    call.require_monitoring()
    return Answer(body=listed([view(one, NODE) for one in _seen(call)], call.query))


async def shovel(call: Call, views: Views) -> Answer:
    call.require_monitoring()
    found = call.server.shovels.find(call.vhost().name, call.path["name"])
    if found is None:
        raise not_found()
    return Answer(body=view(found, NODE))


async def restart_shovel(call: Call, views: Views) -> Answer:
    call.require_policymaker()
    if not await call.server.shovels.restart(call.entered().name, call.path["name"]):
        raise not_found()
    return DONE


def _seen(call: Call) -> list[RunningShovel]:
    names = {vhost.name for vhost in call.vhosts()}
    return [one for one in call.server.shovels if one.shovel.vhost in names]
