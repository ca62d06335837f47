"""Payloads by their handlers' types: what a form asks for, and whether a document fits."""

from __future__ import annotations

from typing import Any

import msgspec

from commandbus.domain.codec import Codec
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.process.declaration import Process
from commandbus.errors import PayloadError
from commandbus.interfaces.web.values import HandlerView
from commandbus.worker.handlers import Handler, HandlerRegistry


class Payloads:
    """What the handlers of a registry take; of nothing, when there is none."""

    def __init__(self, registry: HandlerRegistry | None) -> None:
        self._registry = registry

    @property
    def known(self) -> bool:
        return self._registry is not None

    @property
    def processes(self) -> dict[str, type[Process[Any]]]:
        """The declarations of processes, by their types."""
        return {} if self._registry is None else self._registry.processes

    def handlers(self) -> list[HandlerView]:
        found = [] if self._registry is None else list(self._registry)
        found.sort(key=lambda handler: (handler.domain, handler.command_type))
        return [
            HandlerView(h.domain, h.command_type, h.payload_name, _schema(h.payload_type))
            for h in found
        ]

    def components(self) -> dict[str, Any]:
        """The schemas of typed payloads, as components of an OpenAPI document."""
        found: dict[str, Any] = {}
        for handler in [] if self._registry is None else self._registry:
            if handler.payload_type is Any:
                continue
            # OpenAPI allows no colon in the name of a component.
            name = f"{handler.domain}.{handler.command_type}".replace(":", "_")
            while name in found:
                name += "_"
            try:
                schema = Codec(handler.payload_type).schema()
            except TypeError:  # a type that has no schema
                continue
            found[name] = _moved(schema, f"#/components/schemas/{name}/")
        return found

    def check(self, domain: str, command_type: str, data: Any) -> None:
        """Raises PayloadError for data that the handler could not decode."""
        handler = self._handler(domain, command_type)
        if handler is None or handler.payload_type is Any:
            return
        try:
            handler.decode(msgspec.json.encode(data).decode())
        except Exception as error:  # a payload type may raise anything in its validation
            raise PayloadError(
                f"The payload does not fit {handler.payload_name}, which the handler of "
                f"{command_type!r} takes: {describe_misfit(error)}"
            ) from None

    def _handler(self, domain: str, command_type: str) -> Handler | None:
        return None if self._registry is None else self._registry.get(domain, command_type)


def _schema(payload_type: Any) -> dict[str, Any]:
    """A JSON schema with its parts in place; empty for a payload without a type."""
    if payload_type is Any:
        return {}
    own: Any = getattr(payload_type, "model_json_schema", None)  # pydantic, without importing it
    if own is not None:
        described: dict[str, Any] = own()
        return described
    try:
        (schema,), components = msgspec.json.schema_components([payload_type])
    except TypeError:
        return {}
    reference = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = components.get(reference, schema)
    return found


def _moved(part: Any, place: str) -> Any:
    """A schema whose references to its own parts begin at another place."""
    if isinstance(part, list):
        return [_moved(one, place) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        key: place + value.removeprefix("#/")
        if key == "$ref" and isinstance(value, str)
        else _moved(value, place)
        for key, value in part.items()
    }


def fields_of(schema: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The fields of a flat object as a form can ask for them; None when a document is needed."""
    if schema.get("type") != "object" or not schema.get("properties"):
        return None
    fields: list[dict[str, Any]] = []
    for name, part in schema["properties"].items():
        kind = part.get("type")
        if kind is None and "anyOf" in part:
            kinds = [choice.get("type") for choice in part["anyOf"]]
            kind = next((k for k in kinds if k not in (None, "null")), None)
        if kind not in ("string", "integer", "number", "boolean") and "enum" not in part:
            kind = "json"
        fields.append(
            {
                "name": name,
                "kind": kind or "string",
                "required": name in schema.get("required", []),
                "default": part.get("default"),
                "choices": part.get("enum"),
                "format": part.get("format"),
            }
        )
    return fields
