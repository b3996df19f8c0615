"""U2: the OpenAPI document, and that the API keeps to it, tried by schemathesis with made-up requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from remuda.bus.bus import Bus
from remuda.server.http.api import openapi
from remuda.server.http.api.api import Api
from remuda.server.http.api.endpoints import endpoints
from remuda.server.http.app import create_app, operations
from remuda.server.http.serving import Listen, Server
from tests.server.site import serving

_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Bus() as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.*"])
        bus.publish("order.placed", {"n": 1}, id="known")
        server = Server(create_app(bus, streams=1), Listen("127.0.0.1", 0))
        server.start()
        yield server.address.rstrip("/")
        server.stop()


schema = schemathesis.openapi.from_dict(openapi.document(endpoints(Api()))).exclude(path_regex="stream$")


@schemathesis.serializer("application/x-ndjson")
def lines(context: schemathesis.SerializationContext, value: object) -> bytes:
    return str(value).encode("utf-8", "replace")


@schema.parametrize()
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: schemathesis.Case[Any], address: str) -> None:
    """U2"""
    if isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = 0
    case.call_and_validate(base_url=address, checks=_CHECKS, timeout=60)


def test_the_document_lists_every_operation() -> None:
    """U2"""
    with Bus() as bus, serving(bus) as site:
        document = httpx.get(f"{site.address}/api/v1/openapi.json").json()
    listed = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert ("post", "/api/v1/messages") in listed
    assert ("get", "/api/v1/log/stream") in listed
    assert listed == {(one.method.lower(), re.sub(r":\w+}", "}", one.path)) for one in operations(Api())}
