"""Payloads by their handlers' types: what a form asks for, and whether a document fits."""

from __future__ import annotations

from typing import Any

import msgspec

from commandbus.domain.codec import Codec
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.process.declaration import Process
from commandbus.errors import PayloadError
from commandbus.interfaces.web.schemas import HandlerView
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
        placed: dict[str, Any] = _in_place(described, described.get("$defs", {}))
        return placed
    try:
        (schema,), components = msgspec.json.schema_components([payload_type])
    except TypeError:
        return {}
    reference = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = _in_place(components.get(reference, schema), components)
    return found


def _in_place(part: Any, components: dict[str, Any], above: tuple[str, ...] = ()) -> Any:
    """A schema with the parts that it refers to in their places; one that contains itself stays a
    reference."""
    if isinstance(part, list):
        return [_in_place(one, components, above) for one in part]
    if not isinstance(part, dict):
        return part
    name = str(part.get("$ref", "")).rpartition("/")[2]
    if name in components and name not in above:
        rest = {key: value for key, value in part.items() if key != "$ref"}
        return _in_place(components[name], components, (*above, name)) | rest
    return {key: _in_place(value, components, above) for key, value in part.items() if key != "$defs"}


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
        several = [choice for choice in part.get("anyOf", ()) if choice.get("type") != "null"]
        known = several[0] if len(several) == 1 else part
        choices = known.get("enum")
        kind = known.get("type", _kind_of(choices) if choices else None)
        fields.append(
            {
                "name": name,
                "kind": kind if kind in ("string", "integer", "number", "boolean") else "json",
                "required": name in schema.get("required", []),
                "default": part.get("default"),
                "choices": choices,
                "format": known.get("format"),
            }
        )
    return fields


def _kind_of(choices: list[Any]) -> str:
    """The kind of a field whose values are known."""
    if all(isinstance(one, str) for one in choices):
        return "string"
    return "integer" if all(type(one) is int for one in choices) else "json"
