"""The reference pages of the documentation site, made from the code when the site is built.

`pages()` maps the path of each page to its Markdown. Nothing here is written by hand but the order:
signatures, docstrings, settings, commands, metrics and endpoints are those of the installed package.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main
from typer.core import TyperGroup

import commandbus
from commandbus.interfaces.cli.app import SECTIONS, app
from commandbus.interfaces.cli.exits import EXIT_CODES
from commandbus.interfaces.web.openapi import PREFIX, document
from commandbus.settings import BusSettings, WorkerSettings

MODULES = {
    "commandbus": "What most programs import.",
    "commandbus.sync": "The same classes for threads, with the prefix `Sync`.",
    "commandbus.records": "What calls return: records, reports, statistics.",
    "commandbus.processes": "What a process is made of, and its records.",
    "commandbus.retry": "Backoff functions for `RetryPolicy`.",
    "commandbus.connect": "Connections to PostgreSQL, planned and pooled.",
    "commandbus.pgmq": "PGMQ clients, and the mapping of a foreign queue.",
    "commandbus.testing": "Helpers for the tests of an application.",
}
INTEGRATIONS = {
    "commandbus.integrations.fastapi": ("bus_lifespan", "get_bus", "install_error_handlers"),
    "commandbus.integrations.sqlalchemy": ("send_after_commit",),
    "commandbus.integrations.django.backend": ("CommandBusBackend",),
    "commandbus.integrations.django.handling": ("registry_for",),
    "commandbus.integrations.celery": (),
    "commandbus.interfaces.web": (),
    "commandbus.observe.exposition": ("render", "render_sender"),
    "commandbus.observe.logs": ("JsonFormatter", "correlated"),
    "commandbus.runtimes.probes": ("SignsOfLife",),
}
"""What programs import of the integrations; of those with `__all__`, what it lists."""
LINE = 88
"""Signatures longer than this have a line per parameter."""


def pages() -> dict[str, str]:
    """Path below the documentation folder, and Markdown, of every reference page."""
    found = {f"reference/{name.replace('.', '-')}.md": module_page(name) for name in MODULES}
    found["reference/integrations.md"] = integrations_page()
    found["reference/errors.md"] = errors_page()
    found["reference/settings.md"] = settings_page()
    found["reference/command-line.md"] = commands_page()
    found["reference/metrics.md"] = metrics_page()
    found["reference/http-api.md"] = endpoints_page()
    return found


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; a `|` inside a cell would begin another."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


# Python


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module: what it lists, or else its own, or what it passes on."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        known = [name for name in dir(module) if not name.startswith("_")]
        own = [n for n in known if getattr(getattr(module, n), "__module__", "") == module.__name__]
        listed = own or known
    return sorted(
        name for name in listed if not inspect.ismodule(getattr(module, name)) and name != "annotations"
    )


def module_page(name: str) -> str:
    module = importlib.import_module(name)
    listing = importlib.import_module("commandbus.names") if name == "commandbus" else module
    public, homes = names_of(listing), imported_by(listing)
    parts = [f"# `{name}`", MODULES[name]]
    for public_name in public:
        home = constants_of(homes.get(public_name, name))
        if public_name in home:
            parts += [f"## {public_name}", home[public_name]]
        else:
            parts += entry(public_name, getattr(module, public_name))
    return "\n\n".join(parts) + "\n"


def imported_by(module: ModuleType) -> dict[str, str]:
    """The modules from which a module has its names."""
    imports = [
        node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ImportFrom)
    ]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


@cache
def constants_of(name: str) -> dict[str, str]:
    """The docstrings that follow the constants and aliases of a module."""
    found: dict[str, str] = {}
    for assigned, text in pairwise(ast.parse(inspect.getsource(importlib.import_module(name))).body):
        if isinstance(assigned, ast.Assign):
            target = assigned.targets[0]
        elif isinstance(assigned, ast.AnnAssign):
            target = assigned.target
        else:
            continue
        words = text.value if isinstance(text, ast.Expr) else None
        if isinstance(words, ast.Constant) and isinstance(target, ast.Name):
            found[target.id] = inspect.cleandoc(str(words.value))
    return found


def integrations_page() -> str:
    parts = ["# Integrations", "How they are used is in [the guide](../guide/integrations.md)."]
    for name, chosen in INTEGRATIONS.items():
        module = importlib.import_module(name)
        parts += [f"## `{name}`", text_of(module)]
        for public in chosen or names_of(module):
            described = "\n\n".join(entry(public, getattr(module, public)))
            parts.append(re.sub("^##", "###", described, flags=re.MULTILINE))
    parts += ["## Fixtures of pytest", "The plugin is loaded where the package is installed."]
    parts.append(table(("fixture", "what"), fixtures()))
    return "\n\n".join(parts) + "\n"


def fixtures() -> list[tuple[str, str]]:
    """The public fixtures of the pytest plugin, and the first paragraph of what they say."""
    plugin = importlib.import_module("commandbus.integrations.pytest_plugin")
    tree = ast.parse(inspect.getsource(plugin))
    found = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.decorator_list]
    return [
        (f"`{one.name}`", (ast.get_docstring(one) or "").split("\n\n")[0])
        for one in found
        if not one.name.startswith("_")
    ]


def entry(name: str, value: Any) -> Iterator[str]:
    """A heading, the signature and the docstring of a public name; of a class, also its members."""
    yield f"## {name}"
    if not inspect.isclass(value):
        if callable(value) and (signed := signature(name, value)):
            yield signed
        yield text_of(value)
        return
    if issubclass(value, enum.Enum):
        yield text_of(value)
        yield "\n".join(f"- `{member.name}`" for member in value)
        return
    if signed := signature(name, value):
        yield signed
    yield text_of(value)
    described: Any = value
    if fields := field_texts(described):
        yield "\n".join(f"- `{field}`: {text}" for field, text in fields.items())
    for member, found in members(value):
        prefix = "async " if inspect.iscoroutinefunction(found) else ""
        if isinstance(found, property):
            yield f"### {name}.{member}"
        else:
            yield f"### {name}.{member}()"
            yield signature(f"{prefix}{member}", found, method=True)
        yield text_of(found)


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring, from the class and its bases in this package."""
    for name in sorted(dir(owner)):
        if name.startswith("_"):
            continue
        found = inspect.getattr_static(owner, name)
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        home = getattr(getattr(found, "fget", found), "__module__", "") or ""
        documented = isinstance(found, property) or callable(found)
        if home.startswith("commandbus") and documented and inspect.getdoc(found):
            yield name, found


def signature(name: str, value: Any, *, method: bool = False) -> str:
    """The call as a block of Python; empty where a callable has no signature."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = list(found.parameters.values())
    if method and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    written = list(_parameters(parameters))
    returned = found.return_annotation
    arrow = "" if returned in (inspect.Signature.empty, None, "None") else f" -> {_type(returned)}"
    line = f"{name}({', '.join(written)}){arrow}"
    if len(line) > LINE:
        lines = "".join(f"    {one},\n" for one in written)
        line = f"{name}(\n{lines}){arrow}"
    return f"```python\n{line}\n```"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    former: Any = None
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for parameter in parameters:
        named_only = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if named_only and former not in (parameter.kind, inspect.Parameter.VAR_POSITIONAL):
            yield "*"
        former = parameter.kind
        text = stars.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {_type(parameter.annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {_default(parameter)}"
        yield text


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:commandbus|typing|collections\.abc)(?:\.\w+)*\.(?=\w)", "", text).replace(
        "'", ""
    )


def text_of(value: Any) -> str:
    """The docstring; reST literals are Markdown's as well."""
    return inspect.getdoc(value) or ""


@cache
def field_texts(owner: Any) -> dict[str, str]:
    """The docstrings that follow the fields of a class, by field, with those of its bases."""
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if not base.__module__.startswith("commandbus"):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in pairwise(body):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                words = " ".join(str(text.value.value).split())
                if not field.target.id.startswith("_"):
                    found[field.target.id] = words
    return found


def errors_page() -> str:
    module = importlib.import_module("commandbus.errors")
    errors = [
        found
        for found in vars(module).values()
        if inspect.isclass(found)
        and issubclass(found, BaseException)
        and found.__module__ == module.__name__
    ]
    head = """# Errors

Every error of the package, from `commandbus.errors`. The message says what happened, with which value,
and what to do. [Codes of failed commands](../codes.md) have a page of their own."""
    parts = [head]
    for error in errors:
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        parts += [f"## {error.__name__}", f"Bases: {bases}.", text_of(error)]
    return "\n\n".join(parts) + "\n"


# Settings


def settings_page() -> str:
    head = """# Settings

Arguments of `CommandBus` and of `Worker`; `commandbus worker --set NAME=VALUE` sets a worker's."""
    parts = [head]
    for owner, title in ((BusSettings, "The bus"), (WorkerSettings, "The worker")):
        texts = field_texts(owner)
        rows = [
            (f"`{name}`", f"`{_default(parameter)}`", texts.get(name, ""))
            for name, parameter in inspect.signature(owner).parameters.items()
        ]
        parts += [f"## {title}", table(("setting", "default", "meaning"), rows)]
    rows_of_variables = [(f"`{name}`", meaning) for name, meaning in ENVIRONMENT.items()]
    parts += ["## Environment variables", table(("variable", "meaning"), rows_of_variables)]
    return "\n\n".join(parts) + "\n"


def _default(parameter: inspect.Parameter) -> str:
    """Three dots for an object that has no text of its own."""
    return re.sub(r"<.*>", "...", repr(parameter.default))


ENVIRONMENT = {
    "COMMANDBUS_URL": "The store, where no URL is passed.",
    "COMMANDBUS_APP": "The module with the handlers, where a command names none.",
    "COMMANDBUS_LEDGER_KEY": "The key that seals the ledger of operators' actions.",
    "COMMANDBUS_LISTEN_URL": "A direct connection to PostgreSQL for wake-ups, beside a pooler.",
    "COMMANDBUS_RECORDER": "The folder of the flight recorders of workers, or `off`.",
    "COMMANDBUS_TEST_POSTGRES": "A PostgreSQL server for the pytest plugin, instead of one of its own.",
}
"""A test compares this with the variables that the code reads."""


# Commands


def commands_page() -> str:
    parts = [
        "# Command line",
        "Every command with its options, as `commandbus COMMAND --help` shows them.",
        "## Exit codes",
        "\n".join(f"- `{int(code)}`: {meaning}" for code, meaning in EXIT_CODES.items()),
    ]
    root: Any = typer.main.get_command(app)  # its classes are those of a Click that typer brings along
    context = root.context_class(root, info_name="commandbus")
    for section, commands in SECTIONS.items():
        parts.append(f"## {section}")
        for name in commands:
            command = root.get_command(context, name)
            if command is not None:
                parts += _command(f"commandbus {name}", command, context)
    return "\n\n".join(parts) + "\n"


def _command(path: str, command: Any, parent: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=path.rpartition(" ")[2], parent=parent)
    yield f"### {path}"
    yield inspect.cleandoc(command.help or "")
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _command(f"{path} {name}", found, context)
        return
    rows = [
        (f"`{', '.join((*found.opts, *found.secondary_opts))}`", str(getattr(found, "help", "") or ""))
        for found in command.params
        if not getattr(found, "hidden", False)
    ]
    if rows:
        yield table(("argument or option", "meaning"), rows)


# Metrics


@cache
def metrics() -> dict[str, tuple[str, str]]:
    """Name, kind and meaning of every metric, read from the calls of an `Exposition` in the code."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(Path(commandbus.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "Exposition" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            texts = [str(arg.value) for arg in node.args[:3] if isinstance(arg, ast.Constant)]
            if node.func.attr == "histograms":
                found[f"commandbus_{texts[0]}"] = ("histogram", texts[1])
            elif node.func.attr == "add" and len(texts) == 3 and texts[1] in ("counter", "gauge"):
                found[f"commandbus_{texts[0]}"] = (texts[1], texts[2])
    return found


def metrics_page() -> str:
    head = """# Metrics

What `/metrics` of a worker's probes and of the dashboard shows, for Prometheus.
[Telemetry](../guide/telemetry.md) explains how to collect it."""
    rows = [(f"`{name}`", kind, words) for name, (kind, words) in sorted(metrics().items())]
    return f"{head}\n\n{table(('metric', 'kind', 'meaning'), rows)}\n"


# HTTP

MEANINGS = {
    "actor": "Only actions of this operator.",
    "after": "The cursor of the page before, its `next`; without it, the first page.",
    "batch_id": "The id of the batch.",
    "command_id": "The id of the command.",
    "command_type": "The command type, which chooses the handler.",
    "data": "The payload.",
    "delay": "Due so many seconds from now.",
    "domain": "The domain of the command.",
    "event": "Only events of this type.",
    "limit": "How many at most.",
    "max_attempts": "Attempts, instead of those of the handler.",
    "name": "The name of the schedule.",
    "priority": "`high`, `normal`, `low` or a number; the lower one goes first.",
    "process_id": "The id of the process.",
    "process_type": "Only processes of this type.",
    "span": "The range of the figures, `10m`, `1h`, `24h` or `7d`.",
    "status": "Only this status.",
    "tags": "Words to find the command by.",
    "target": "The name of the breaker.",
}
"""What parameters mean that many endpoints have, where the OpenAPI document does not say it."""


def endpoints_page() -> str:
    api = document()
    head = f"""# HTTP API

Every endpoint below `{PREFIX}`, from the OpenAPI document that the dashboard serves at
`{PREFIX}/openapi.json`. [The dashboard](../guide/dashboard.md) explains tokens and roles."""
    parts = [head]
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## {method.upper()} {path}")
            parts.append(operation.get("description") or operation.get("summary") or "")
            if rows := list(_fields(operation, api)):
                parts.append(table(("name", "in", "meaning"), rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def _fields(operation: dict[str, Any], api: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for parameter in operation.get("parameters", ()):
        name = parameter["name"]
        yield f"`{name}`", parameter["in"], _meaning(name, parameter | parameter.get("schema", {}))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = _resolved(body.get("schema", {}), api)
    for name, field in schema.get("properties", {}).items():
        where = "body, required" if name in schema.get("required", ()) else "body"
        yield f"`{name}`", where, _meaning(name, field)


def _meaning(name: str, schema: dict[str, Any]) -> str:
    """The description of a field, also where it is that of one of several types."""
    choices = (schema, *schema.get("anyOf", ()))
    told = next((choice["description"] for choice in choices if "description" in choice), "")
    return told or MEANINGS.get(name, "")


def _resolved(schema: dict[str, Any], api: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    found: dict[str, Any] = api["components"]["schemas"].get(reference.rpartition("/")[2], schema)
    return found
