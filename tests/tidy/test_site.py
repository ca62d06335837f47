"""The documentation site builds without a warning, and its reference leaves nothing out."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import typer.main

from commandbus.errors import CommandBusError
from commandbus.interfaces.cli.app import app
from commandbus.interfaces.web.openapi import document
from tests.tidy.project import ROOT, syntax

CODE = re.compile(r"[A-Z][A-Z_]{3,}")
MAKERS = {
    *("Failure", "Parked", "ProcessError", "DecisionError", "refuse"),
    *("TransientCommandError", "PermanentCommandError", "__init__"),
}
ROOMS = ("domain", "worker", "operations", "engines", "store")


@cache
def reference() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        import reference as module  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    return module


@cache
def pages() -> dict[str, str]:
    return reference().pages()


NAMED = ("code", "error_code", "reason")


def name_of(function: ast.expr) -> str:
    """`refuse` of `refuse(…)`, `__init__` of `super().__init__(…)`."""
    return str(getattr(function, "id", getattr(function, "attr", "")))


@cache
def codes_in_the_source() -> set[str]:
    """Texts in capitals that are passed to what makes failures and reasons for parking, and those that
    are passed by such a name, or are its default."""
    found: set[str] = set()
    package = ROOT / "src" / "commandbus"
    for path in (
        package / "errors.py",
        *(file for room in ROOMS for file in (package / room).rglob("*.py")),
    ):
        values: list[ast.expr | None] = []
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Call):
                made = name_of(node.func) in MAKERS
                values += node.args if made else ()
                values += (word.value for word in node.keywords if made or word.arg in NAMED)
            elif isinstance(node, ast.arguments):
                placed = [*node.posonlyargs, *node.args]
                named = placed[len(placed) - len(node.defaults) :]
                pairs = zip(
                    [*named, *node.kwonlyargs], [*node.defaults, *node.kw_defaults], strict=True
                )
                values += (default for one, default in pairs if one.arg in NAMED)
        texts = [value.value for value in values if isinstance(value, ast.Constant)]
        found |= {text for text in texts if isinstance(text, str) and CODE.fullmatch(text)}
    return found


def test_the_site_builds_without_a_warning(tmp_path: object) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr[-3_000:]


def test_every_code_of_the_source_is_explained() -> None:
    page = (ROOT / "docs" / "codes.md").read_text(encoding="utf-8")
    assert {"STEP_TIMEOUT", "RETRY_AFTER", "EXHAUSTED"} <= codes_in_the_source()
    missing = {code for code in codes_in_the_source() if f"`{code}`" not in page}
    assert len(codes_in_the_source()) > 15
    assert not missing, f"Add a row to docs/codes.md for {', '.join(sorted(missing))}."


@pytest.mark.parametrize("room", list(reference().MODULES))
def test_every_public_name_has_an_entry_and_a_docstring(room: str) -> None:
    module = importlib.import_module("commandbus.names" if room == "commandbus" else room)
    page = pages()[f"reference/{room.replace('.', '-')}.md"]
    names = reference().names_of(module)
    assert names
    for name in names:
        _, heading, after = page.partition(f"\n## {name}\n")
        assert heading, name
        words = re.sub(r"```.*?```", "", after.partition("\n## ")[0], flags=re.DOTALL)
        assert words.strip(), f"{name} has no docstring"


def test_every_public_module_has_a_page() -> None:
    """What the guides import belongs to a module of the reference, or to an integration."""
    line = re.compile(r"^from (commandbus[\w.]*) import", re.MULTILINE)
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    imported = {name for text in texts for name in line.findall(text)}
    own = {"commandbus.errors"}  # a page of its own
    others = {name for name in imported if name.startswith("commandbus.integrations")}
    assert len(imported) > 8
    assert imported - others - own - {*reference().MODULES, *reference().INTEGRATIONS} == set()


def test_what_the_guide_imports_from_integrations_is_in_the_reference() -> None:
    page = pages()["reference/integrations.md"]
    rooms = r"commandbus\.(?:integrations|interfaces|observe|runtimes)\.[\w.]+"
    line = re.compile(rf"^from ({rooms}) import ([\w, ]+)", re.MULTILINE)
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    imported = {
        (m, name.strip()) for t in texts for m, names in line.findall(t) for name in names.split(",")
    }
    assert len(imported) > 8
    others = {"task_backends", "crontab"}  # Django's own; a module of the names of Celery
    missing = {(m, name) for m, name in imported if f"### {name}\n" not in page and name not in others}
    assert not missing
    assert {"`command_clock`", "`postgres_command_bus`"} <= set(re.findall(r"`\w+`", page))
    silent = [part.splitlines()[0] for part in page.split("\n### ")[1:] if len(part.splitlines()) < 2]
    assert not silent, f"without a word about them: {silent}"


def test_signatures_show_what_may_be_passed() -> None:
    page = pages()["reference/commandbus.md"]
    send = page.partition("### CommandBus.send()")[2].partition("\n### ")[0]
    assert "priority: Priority | None = None" in send
    assert "-> SendResult[R]" in send
    assert "<" not in send.partition("```python")[2].partition("```")[0]


def test_every_error_has_an_entry() -> None:
    import commandbus.errors

    errors = [
        name
        for name, value in vars(commandbus.errors).items()
        if isinstance(value, type) and issubclass(value, CommandBusError)
    ]
    assert len(errors) > 10
    assert [name for name in errors if f"## {name}\n" not in pages()["reference/errors.md"]] == []


def test_every_variable_that_the_code_reads_is_listed() -> None:
    read = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\"(COMMANDBUS_[A-Z_]+)\"", path.read_text(encoding="utf-8"))
    }
    internal = {"COMMANDBUS_CHILD_OF", "COMMANDBUS_SUPERVISOR", "COMMANDBUS_PROBE_PORT_FILE"}
    assert read - internal == set(reference().ENVIRONMENT)


def commands_below(group: Any, path: str, parent: Any = None) -> Iterator[tuple[str, Any]]:
    context = group.context_class(group, info_name=path, parent=parent)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        yield f"{path} {name}", command
        if hasattr(command, "list_commands"):
            yield from commands_below(command, f"{path} {name}", context)


def test_every_command_of_the_command_line_has_an_entry_and_its_options_a_meaning() -> None:
    page = pages()["reference/command-line.md"]
    found = dict(commands_below(typer.main.get_command(app), "commandbus"))
    assert {"commandbus send", "commandbus tsq retry", "commandbus db upgrade"} <= found.keys()
    assert [path for path in found if f"### {path}\n" not in page] == []
    silent = [
        f"{path} {option.name}"
        for path, command in found.items()
        for option in command.params
        if not getattr(option, "hidden", False) and not getattr(option, "help", "")
    ]
    assert not silent


@pytest.mark.parametrize("page", ["settings", "metrics", "http-api"])
def test_every_row_of_the_reference_has_a_meaning(page: str) -> None:
    rows = [line for line in pages()[f"reference/{page}.md"].splitlines() if line.startswith("| `")]
    silent = sorted({row for row in rows if re.search(r"\|\s*\|$", row)})
    assert len(rows) > 20
    assert not silent, silent


def test_every_metric_has_an_entry() -> None:
    page = pages()["reference/metrics.md"]
    assert "`commandbus_commands_sent_total` | counter" in page
    assert "`commandbus_claim_duration_seconds` | histogram" in page
    made: list[str] = []
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for call in ast.walk(ast.parse(text)) if "Exposition" in text else ():
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            values = [getattr(value, "value", None) for value in call.args[:2]]
            if call.func.attr == "histograms" or values[1:] in (["counter"], ["gauge"]):
                made.append(str(values[0]))
    assert len(made) > 30
    assert "None" not in made, "a name that is not written where it is added"
    assert [name for name in made if f"`commandbus_{name}`" not in page] == []


def test_every_endpoint_has_an_entry() -> None:
    page = pages()["reference/http-api.md"]
    paths = document()["paths"]
    assert "/commands" in paths
    wanted = [f"## {method.upper()} {path}\n" for path, found in paths.items() for method in found]
    assert [heading for heading in wanted if heading not in page] == []
