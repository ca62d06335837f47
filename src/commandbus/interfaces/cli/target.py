"""Which store and which app a command means: flags, environment, context, pyproject.toml, default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commandbus.errors import CommandBusError, ConfigurationError
from commandbus.interfaces.cli import options
from commandbus.interfaces.cli.context_file import Contexts
from commandbus.interfaces.cli.exits import CliError, Exit, exit_code
from commandbus.settings import DEFAULT_URL
from commandbus.store.urls import shown_url

if TYPE_CHECKING:
    from commandbus.store.session import Engine
    from commandbus.sync import SyncCommandBus

chosen_url: str | None = None
"""`commandbus --url … COMMAND`: what was given before the command; a command's own --url wins."""
chosen_context: str | None = None
"""`commandbus --context NAME COMMAND`."""


def find_url(flag: str | None, listen_url: str | None = None) -> str:
    """The store's URL. --listen-url goes to this process and its children by the environment: all
    users can see arguments."""
    if listen_url is not None:
        os.environ["COMMANDBUS_LISTEN_URL"] = listen_url
    return find_store(flag)[0]


def find_store(flag: str | None) -> tuple[str, str]:
    """The store's URL and what names it: --url, else --context, else COMMANDBUS_URL, else the context
    in use, else `[tool.commandbus] url` of the nearest pyproject.toml, else sqlite:///commandbus.db in
    the current folder."""
    if given := flag or chosen_url:
        return given, "--url"
    if chosen_context is not None:
        return Contexts.load().url_of(chosen_context), f"--context {chosen_context}"
    if given := os.environ.get("COMMANDBUS_URL"):
        return given, "COMMANDBUS_URL"
    known = Contexts.load()
    if known.in_use is not None:
        return known.url_of(known.in_use), f"the context in use, {known.in_use}"
    folder, settings = _project()
    configured = settings.get("url")
    if configured is None:
        return DEFAULT_URL, "default"
    if not isinstance(configured, str):
        raise CliError(
            f"[tool.commandbus] url in {folder / 'pyproject.toml'} must be text.", Exit.USAGE
        )
    return _beside(folder, configured), str(folder / "pyproject.toml")


def find_app(argument: str | None) -> str:
    """The app: the argument, else COMMANDBUS_APP, else `[tool.commandbus] app`."""
    if named := argument or os.environ.get("COMMANDBUS_APP"):
        return named
    folder, settings = _project()
    configured = settings.get("app")
    if not isinstance(configured, str) or not configured:
        file = folder / "pyproject.toml"
        raise CliError(
            "Which app? Give it as an argument, module:registry, as COMMANDBUS_APP, or as "
            f"`app` under [tool.commandbus] in pyproject.toml; {file} "
            f"{'has none' if file.is_file() else 'is not there, nor is one above it'}.",
            Exit.USAGE,
        )
    return configured


def _project() -> tuple[Path, dict[str, Any]]:
    """The nearest pyproject.toml above the current folder, and its [tool.commandbus]."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        import tomllib

        try:
            parsed = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CliError(f"{file} cannot be read: {error}.", Exit.USAGE) from None
        section = parsed.get("tool", {}).get("commandbus", {})
        if not isinstance(section, dict):
            raise CliError(f"[tool.commandbus] in {file} must be a table.", Exit.USAGE)
        return folder, section
    return here, {}


def _beside(folder: Path, url: str) -> str:
    """A relative SQLite path in pyproject.toml counts from that file, wherever one stands."""
    prefix = "sqlite:///"
    if url.startswith(prefix) and not url.startswith(prefix + "/") and folder != Path.cwd():
        return f"{prefix}{folder / url.removeprefix(prefix)}"
    return url


@contextmanager
def opened(flag: str | None, *, create: bool = False) -> Iterator[SyncCommandBus]:
    """An open bus for one command. Without `create`, an SQLite file that is not there is an error
    rather than a new, empty file in whatever folder one happens to be."""
    # Not by way of commandbus.sync, which brings the workers along: commands that only read need none.
    from commandbus.runtimes.threads.bus import SyncCommandBus

    bus = SyncCommandBus(find_url(flag))
    check_store(bus.engine, create=create)
    with opening():
        bus.open()
    try:
        yield bus
    except CommandBusError as error:
        if exit_code(error) is Exit.NOT_FOUND:
            raise CliError(f"{error} Looked in {shown_url(bus.url)}.", Exit.NOT_FOUND) from error
        raise
    finally:
        bus.close()


@contextmanager
def acting(flag: str | None, operator: str | None, *, create: bool = False) -> Iterator[SyncCommandBus]:
    """An open bus for one command that acts in the name of --operator, else of the login."""
    with opened(flag, create=create) as bus:
        yield bus.acting(options.acting(operator))


@contextmanager
def opening() -> Iterator[None]:
    """A store that cannot be opened is a matter of the store, not of the usage."""
    try:
        yield
    except ConfigurationError as error:
        raise CliError(str(error), Exit.STORE) from error


def check_store(engine: Engine, *, create: bool) -> None:
    """Refuse a store that this process cannot share, or a file that does not exist."""
    if engine.url.startswith("memory:"):
        raise CliError(
            "memory:// lives inside one process, so the command line cannot see it; name an SQLite "
            "file or a PostgreSQL database with --url.",
            Exit.USAGE,
        )
    path = getattr(engine, "path", None)
    if not create and isinstance(path, Path) and not path.exists():
        raise CliError(
            f"There is no file {path}; name the store with --url, COMMANDBUS_URL or --context, or "
            "create it with `commandbus db upgrade`.",
            Exit.STORE,
        )
