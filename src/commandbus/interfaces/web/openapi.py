"""The OpenAPI document, made from the table of endpoints."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from commandbus.interfaces.web.endpoints import ENDPOINTS, PATH_TYPES, Endpoint
from commandbus.interfaces.web.schemas import Problem
from commandbus.settings import VERSION

PREFIX = "/api/v1"
_PART = re.compile(r"{(\w+)}")
_PROBLEMS = {
    "400": "The body is not JSON.",
    "401": "Unauthenticated.",
    "403": "Forbidden.",
    "404": "There is no such thing.",
    "408": "The body did not arrive in time.",
    "409": "It does not fit the present state.",
    "413": "The body is too large.",
    "415": "The body is not declared as JSON.",
    "422": "Something in the request is not valid; the message says what.",
    "429": "The queue is full, or too many sign-ins failed; see Retry-After.",
    "503": "The store, or the file of accounts, cannot be read.",
}


@cache
def document(prefix: str = "") -> dict[str, Any]:
    """The API below a prefix."""
    types = [t for e in ENDPOINTS for t in (e.answers, e.body, e.query) if t is not None]
    schemas, components = msgspec.json.schema_components(
        [*types, Problem], ref_template="#/components/schemas/{name}"
    )
    # The request of a schedule is for programs: its fields are always there.
    del components["Schedule"]["properties"]["request"]
    components["Schedule"]["required"] += ["domain", "command_type"]
    by_type = dict(zip([*types, Problem], schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        described = _operation(endpoint, by_type, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Command Bus", "version": VERSION},
        "servers": [{"url": f"{prefix}{PREFIX}"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "NAME.SECRET"},
            },
        },
    }


def document_with(prefix: str, payloads: dict[str, Any]) -> dict[str, Any]:
    """The API below a prefix, and the schemas of payloads among its components."""
    plain = document(prefix)
    components = plain["components"]
    return plain | {"components": components | {"schemas": components["schemas"] | payloads}}


def _operation(endpoint: Endpoint, by_type: dict[Any, Any], components: Any) -> dict[str, Any]:
    parameters = [_path_parameter(name) for name in _PART.findall(endpoint.path)]
    if endpoint.query is not None:
        schema = components[by_type[endpoint.query]["$ref"].rpartition("/")[2]]
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": part}
            for name, part in schema["properties"].items()
        ]
    answers: dict[str, Any] = {
        "200": {"description": "Done.", "content": _json(by_type[endpoint.answers])}
    }
    for status, text in _PROBLEMS.items():
        answers[status] = {"description": text, "content": _json(by_type[Problem])}
    described: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "x-role": str(endpoint.role),
        "parameters": parameters,
        "responses": answers,
    }
    if endpoint.body is not None:
        content = _json(by_type[endpoint.body])
        described["requestBody"] = {"required": True, "content": content}
    return described


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name in PATH_TYPES:
        schema["format"] = "uuid"
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
