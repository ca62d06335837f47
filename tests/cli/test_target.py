"""Which store and which app a command means."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commandbus import HandlerRegistry
from commandbus.interfaces.cli import target
from commandbus.interfaces.cli.apps import load_registry
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli

APP = """
from commandbus import HandlerRegistry
registry = HandlerRegistry()
other = HandlerRegistry()
empty = HandlerRegistry()
text = "no registry"
@registry.handler("shop", "Buy")
@other.handler("mail", "Send")
def handle(command, context): ...
def build():
    return other
def fail():
    raise OSError("no network")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(target, "chosen_url", None)
    monkeypatch.setattr(target, "chosen_context", None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("COMMANDBUS_URL", "COMMANDBUS_APP"):
        monkeypatch.delenv(name, raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("cliapp_"):
            del sys.modules[name]


def test_flag_environment_project_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert target.find_url(None) == "sqlite:///commandbus.db"
    (folder / "pyproject.toml").write_text('[tool.commandbus]\nurl = "sqlite:///project.db"\n')
    assert target.find_url(None) == "sqlite:///project.db"
    monkeypatch.setenv("COMMANDBUS_URL", "sqlite:///environment.db")
    assert target.find_url(None) == "sqlite:///environment.db"
    monkeypatch.setattr(target, "chosen_url", "sqlite:///before.db")
    assert target.find_url(None) == "sqlite:///before.db"
    assert target.find_url("sqlite:///flag.db") == "sqlite:///flag.db"


def test_a_relative_file_counts_from_its_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pyproject.toml").write_text('[tool.commandbus]\nurl = "sqlite:///project.db"\n')
    (folder / "deep").mkdir()
    monkeypatch.chdir(folder / "deep")
    assert target.find_url(None) == f"sqlite:///{folder / 'project.db'}"


@pytest.mark.parametrize(
    "text", ["[tool.commandbus\n", "[tool.commandbus]\nurl = 5\n", "[tool]\ncommandbus = 3\n"]
)
def test_a_wrong_project_file_is_a_usage_error(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(CliError, match=r"pyproject\.toml") as caught:
        target.find_url(None)
    assert caught.value.code is Exit.USAGE


def test_reading_creates_no_file(cli: Cli, url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    for command in (["list"], ["tsq", "count"], ["queue", "list"], ["health"], ["db", "doctor"]):
        cli(*command, code=None)
    assert "There is no file" in cli("list", code=4).err
    assert not path.exists()


def test_the_url_may_stand_before_the_command(cli: Cli, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    cli("--url", elsewhere, "send", "shop", "Buy")
    with SyncCommandBus(elsewhere) as bus:
        assert len(bus.query_commands()) == 1


def test_an_app_is_found_by_attribute_by_module_and_by_factory(folder: Path) -> None:
    (folder / "cliapp_shop.py").write_text(APP)
    for app in ("cliapp_shop", "cliapp_shop:registry"):
        assert load_registry(app).has_handler("shop", "Buy")
    for app in ("cliapp_shop:other", "cliapp_shop:build", "cliapp_shop:build()"):
        assert load_registry(app).has_handler("mail", "Send")


def test_a_module_with_one_registry_needs_no_attribute(folder: Path) -> None:
    (folder / "cliapp_one.py").write_text(APP.replace("registry =", "mine = registry ="))
    assert isinstance(load_registry("cliapp_one"), HandlerRegistry)


WRONG_NAME = """
from commandbus import HandlerRegistry

registry = HandlerRegistry()
@registry.handler("orders", "no spaces!")
def ship(command, context): ...
"""


@pytest.mark.parametrize(
    ("app", "complaint"),
    [
        ("cliapp_nowhere:registry", "no module 'cliapp_nowhere'"),
        ("cliapp_bad:regisrty", "did you mean 'registry'"),
        ("cliapp_bad:text", "is str, not a HandlerRegistry"),
        ("cliapp_bad:empty", "has no handlers"),
        ("cliapp_bad:fail", "OSError: no network"),
        ("cliapp_broken", "cliapp_broken.py:1: ZeroDivisionError"),
        ("cliapp_name", "cliapp_name.py:5: "),
        ("cliapp_typo", "cliapp_typo.py:2: SyntaxError: invalid syntax"),
        ("cliapp_needs", "cliapp_missing"),
        ("cliapp_none", "holds no HandlerRegistry"),
        ("cliapp_two", "several registries (one, two)"),
        ("cliapp_two", "registry = HandlerRegistry.union([one, two])"),
    ],
)
def test_a_wrong_app_says_what_was_looked_for(folder: Path, app: str, complaint: str) -> None:
    (folder / "cliapp_bad.py").write_text(APP)
    (folder / "cliapp_broken.py").write_text("1 / 0\n")
    (folder / "cliapp_name.py").write_text(WRONG_NAME)
    (folder / "cliapp_typo.py").write_text("x = 1\ndef broken(:\n")
    (folder / "cliapp_needs.py").write_text("import cliapp_missing\n")
    (folder / "cliapp_none.py").write_text("")
    (folder / "cliapp_two.py").write_text(
        "from commandbus import HandlerRegistry\none, two = HandlerRegistry(), HandlerRegistry()\n"
    )
    with pytest.raises(CliError) as caught:
        load_registry(app)
    assert complaint in str(caught.value)
    assert caught.value.code is Exit.NO_APP


def test_the_app_comes_from_argument_environment_or_project(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CliError, match=r"Which app.* argument, module:registry, as COMMANDBUS_APP"):
        target.find_app(None)
    (folder / "pyproject.toml").write_text('[tool.commandbus]\napp = "project:registry"\n')
    assert target.find_app(None) == "project:registry"
    monkeypatch.setenv("COMMANDBUS_APP", "environment:registry")
    assert target.find_app(None) == "environment:registry"
    assert target.find_app("argument:registry") == "argument:registry"
