"""The OpenAPI document, generated from the table of operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec

from remuda.server.http.api import api_types
from remuda.server.http.api.api import answer_names
from remuda.server.http.api.operations import JSON, NDJSON, Operation

_ALWAYS: Final = (400, 401, 403, 503)
_TITLES: Final = {
    400: "Invalid request",
    401: "Not logged in",
    403: "Not allowed",
    404: "Not found",
    409: "Conflict with what exists",
    413: "Too large",
    415: "Unsupported media type",
    422: "The key was used for another request",
    503: "The broker is unavailable or too busy",
    504: "Stored, but not confirmed in time",
    507: "The disk is full",
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    types = [api_types.ProblemAnswer]
    for operation in operations:
        types += [kind for kind in (operation.request, operation.answer) if kind is not None]
    referenced, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(map(str, types), referenced, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = re.sub(r"{(\w+):\w+}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Remuda",
            "version": _version(),
            "description": "Queues, messages and the event log of a bus. Times are microseconds since the epoch.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"login": {"type": "http", "scheme": "basic"}},
        },
        "security": [{}, {"login": []}],
    }


def _operation(operation: Operation, known: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
            for name in operation.path_names
        ]
        + [
            {"name": one.name, "in": "query", "description": one.description, "schema": one.schema}
            for one in operation.parameters
        ],
        "responses": {str(status): _answer(operation, known) for status in _statuses(operation)},
    }
    if operation.handler.__name__ == "publish":
        key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
        described["parameters"].append({"name": "Idempotency-Key", "in": "header", "schema": key})
    problems = {*_ALWAYS, *operation.problems, *((415, 413) if operation.request is not None else ())}
    for status in sorted(problems):
        described["responses"][str(status)] = {
            "description": _TITLES[status],
            "content": {"application/problem+json": {"schema": known[str(api_types.ProblemAnswer)]}},
        }
    if operation.request is not None:
        schema = known[str(operation.request)]
        content: dict[str, Any] = {JSON: {"schema": schema}}
        if NDJSON in operation.requests:
            content[NDJSON] = {"schema": {"type": "string", "description": "One message per line."}}
        described["requestBody"] = {"required": not operation.optional, "content": content}
    return described


def _statuses(operation: Operation) -> list[int]:
    return [200, 201] if operation.method == "PUT" else [operation.status]


def _answer(operation: Operation, known: dict[str, Any]) -> dict[str, Any]:
    if operation.answers != (JSON,):
        return {"description": "A stream", "content": {operation.answers[0]: {"schema": {"type": "string"}}}}
    if operation.answer is None:
        return {"description": "Done"}
    return {"description": "Done", "content": {JSON: {"schema": known[str(operation.answer)]}}}


def _path_schema(name: str) -> dict[str, Any]:
    if name == "answer":
        return {"type": "string", "enum": answer_names()}
    return {"type": "string", "minLength": 1}


def _version() -> str:
    try:
        return version("remuda")
    except PackageNotFoundError:
        return "0"
