"""`context`: stores by name, in a private file."""

import stat
import sys
from pathlib import Path

import pytest

from commandbus.interfaces.cli import contexts
from commandbus.interfaces.cli.context_file import Contexts, context_file
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli

SECRET = "postgresql://ann:hunter2@db.example/shop?sslpassword=hunter3"


@pytest.fixture
def named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line without COMMANDBUS_URL."""
    monkeypatch.delenv("COMMANDBUS_URL")
    return cli


def source(cli: Cli, *before: str) -> str:
    found: str = cli(*before, "context", "show", "--json").document["source"]
    return found


def test_a_context_names_the_store_of_every_command(named: Cli, url: str, bus: SyncCommandBus) -> None:
    assert "no file" in named("list", code=4).err
    named("context", "add", "prod", "--url", url)
    assert "no file" in named("list", code=4).err
    named("--context", "prod", "send", "shop", "Buy")
    named("context", "use", "prod")
    named("send", "shop", "Buy")
    assert bus.stats("shop").ready == 2
    unknown = "00000000-0000-7000-8000-000000000000"
    assert f"Looked in {url}" in named("show", unknown, code=7).err
    assert "no context is in use" in named("context", "remove", "prod").err
    assert source(named) == "default"


def test_the_order_of_what_names_the_store(named: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pyproject.toml").write_text('[tool.commandbus]\nurl = "sqlite:///project.db"\n')
    assert source(named).endswith("pyproject.toml")
    for name in ("one", "two"):
        named("context", "add", name, "--url", f"sqlite:///{name}.db")
    named("context", "use", "one")
    assert source(named) == "the context in use, one"
    assert source(named, "--context", "two") == "--context two"
    monkeypatch.setenv("COMMANDBUS_URL", "sqlite:///environment.db")
    assert source(named) == "COMMANDBUS_URL"
    assert source(named, "--context", "two") == "--context two"
    both = named("--context", "two", "--url", "sqlite:///flag.db", "context", "show", code=2)
    assert "not both" in both.err
    assert "COMMANDBUS_URL is set, and wins" in named("context", "use", "two").err
    assert source(named, "--url", "sqlite:///flag.db") == "--url"
    monkeypatch.delenv("COMMANDBUS_URL")
    named("context", "use", "--none")
    assert source(named).endswith("pyproject.toml")


def test_passwords_are_kept_private_and_never_printed(named: Cli) -> None:
    added = named("context", "add", "prod", "--use", "--url", "-", stdin=f"{SECRET}\n")
    file = context_file()
    assert "hunter2" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(one.name for one in file.parent.iterdir()) == [file.name, "contexts.lock"]
    again = named("context", "add", "prod", "--url", SECRET, code=2)
    assert "--replace" in again.err
    for ran in (
        added,
        again,
        named("context", "add", "prod", "--url", SECRET, "--replace"),
        named("context", "list"),
        named("context", "list", "--json"),
        named("context", "show"),
        named("context", "show", "prod"),
        named("context", "use", "prod"),
        named("context", "add", "other", "--url", "mysql://ann:hunter2@host/db", code=2),
    ):
        assert "hunter" not in ran.out + ran.err
    assert named("context", "list").rows == [["yes", "prod", "postgresql://ann:…@db.example/shop?…"]]


def test_a_relative_file_is_the_same_in_every_folder(
    named: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    named("context", "add", "here", "--url", "sqlite:///shop.db", "--use")
    monkeypatch.chdir(tmp_path)
    assert named("context", "show").out.strip() == f"sqlite:///{here / 'shop.db'}"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--context", "prod", "list"], "context add prod --url URL"),
        (["context", "use", "prod"], "which has: none yet"),
        (["context", "use"], "or --none"),
        (["context", "remove", "prod"], "There is no context 'prod'"),
        (["context", "add", "prod"], "--url -"),
        (["context", "add", "a/b", "--url", "sqlite:///x.db"], "is no name for a context"),
        (["context", "add", "prod", "--url", "memory://"], "memory:// lives inside one process"),
    ],
)
def test_errors_say_what_to_do(named: Cli, arguments: list[str], advice: str) -> None:
    assert advice in named(*arguments, code=2).err


def test_a_file_that_cannot_be_read_is_named(named: Cli) -> None:
    assert "no URL" in named("context", "add", "prod", "--url", "-", stdin="", code=2).err
    file = context_file()
    file.parent.mkdir(parents=True)
    file.write_text('{"urls": "hunter2"')
    ran = named("list", code=2)
    assert str(file) in ran.err
    assert "hunter2" not in ran.err
    file.write_text('{"in_use": "gone", "urls": {}}')
    assert "context use NAME" in named("list", code=2).err


def test_a_context_that_is_added_meanwhile_is_kept(named: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(url: str) -> str:
        with Contexts.changing() as known:  # another terminal, while this one asks for the URL
            known.urls["other"] = "sqlite:////tmp/other.db"
        return url

    monkeypatch.setattr(contexts, "_checked", checked)
    named("context", "add", "one", "--url", "sqlite:////tmp/one.db")
    listed = named("context", "list", "--json").document["contexts"]
    assert [one["name"] for one in listed] == ["one", "other"]


@pytest.mark.skipif(sys.platform == "win32", reason="looks at the lock with fcntl")
def test_contexts_are_changed_under_a_lock(named: Cli) -> None:
    import fcntl

    with Contexts.changing() as known:
        known.urls["one"] = "sqlite:////tmp/one.db"
        with (
            context_file().with_name("contexts.lock").open("rb") as lock,
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert Contexts.load().urls == known.urls


def test_changes_of_contexts_are_documents_too(named: Cli) -> None:
    shown = {"name": "one", "url": "sqlite:////tmp/one.db", "in_use": False}
    added = named("context", "add", "one", "--url", "sqlite:////tmp/one.db", "--json").document
    assert added == {"context": shown}
    used = named("context", "use", "one", "--json").document
    assert used == {"context": shown | {"in_use": True}}
    assert named("context", "use", "--none", "--json").document == {"context": None}
    assert named("context", "remove", "one", "--json").document == {"context": shown}
