"""The commands, put together; and what every command shares: help, errors, exit codes.

A command is built when it is called: making all of them takes longer than most of them run.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from commandbus.errors import CommandBusError
from commandbus.interfaces.actions.table import ACTIONS
from commandbus.interfaces.cli import completing, output, target
from commandbus.interfaces.cli.exits import EXIT_CODES, CliError, Exit, exit_code
from commandbus.interfaces.cli.lab import lab_module

_HEADING = re.compile(r"^( *)(Usage|[A-Z][a-z ]+)(?=:)", re.MULTILINE)

SECTIONS: dict[str, dict[str, str]] = {
    "Try it": {
        "demo": "See the bus at work: failures, retries, a crash.",
        "load": "Send commands that succeed, fail or crash in a given mix.",
        "bench": "Measure the bus on your own store: sends, drain, pick-up.",
        "dev": "Run everything that development needs: the store, a worker and the dashboard.",
        "version": "Print the version.",
    },
    "Commands": {
        "send": "Send a command.",
        "list": "List commands, newest first.",
        "show": "Show a command: record, payload, error, timeline.",
        "watch": "Wait for a command's outcome.",
        "audit": "Show what happened to a command or to all, what people did, who was restarted.",
        "why": "Say why a command is not running, or what a process or a batch waits for.",
        **{action.cli: action.summary for action in ACTIONS if " " not in action.cli},
        "batch": "Commands that belong together: progress, cancel.",
        "process": "Sagas: steps, compensations, and what waits for an operator.",
        "schedule": "Commands that are sent again and again.",
    },
    "Operate": {
        "worker": "Carry out commands with the handlers of an app.",
        "workers": "The workers and process routers that live; quiet, resume, stop and resize them.",
        "queue": "Whole domains: figures, pause, resume, purge.",
        "tsq": "The troubleshooting queue: commands that wait for an operator.",
        "breaker": "Circuit breakers: targets that are not called for a while.",
        "limit": "Limits: how much runs at once, and starts per second.",
        "dashboard": "Serve the web dashboard and its JSON API.",
        "top": "Watch all domains live.",
        "health": "Probe: is the store reachable, is work stuck?",
        "db": "The store itself: create, check, diagnose.",
        "context": "Stores by name: which one commands mean.",
        "check": "Check what waits or is parked against the handlers of new code.",
        "promote": "Move what waits or is parked from an SQLite file to a PostgreSQL server.",
    },
}
"""What `commandbus --help` shows. The texts are those of the commands; a test compares them."""

FILES = {
    "send": "sending",
    "list": "commands",
    "show": "commands",
    "watch": "commands",
    "worker": "workers",
    "why": "insight",
    "workers": "insight",
    "tsq": "troubleshooting",
    "batch": "batches",
    "process": "processes",
    "schedule": "schedules",
    "breaker": "breakers",
    "limit": "limits",
    "load": "loading",
    "queue": "queues",
    "db": "database",
    "context": "contexts",
    "version": "versions",
    "promote": "promotion",
    "check": "checking",
}
"""Where a command is, when its file has another name."""

LAB = frozenset({"load", "bench"})
"""Commands that the distribution durable-commandbus-lab brings."""

READS = {
    "batch": ("list", "show", "commands"),
    "process": ("list", "show", "audit", "draw", "route"),
    "schedule": ("list", "show"),
    "tsq": ("list", "show", "count"),
    "queue": ("list", "stats"),
    "breaker": ("list",),
    "workers": ("list",),
    "limit": ("list",),
    "context": ("add", "use", "list", "show", "remove"),
    "db": ("upgrade", "verify", "sql", "roles", "doctor", "install-pgmq"),
}
"""The commands of groups that are functions of a file; the others are rows of the table of actions."""

LISTING = frozenset({"workers"})
"""Groups that list when no command is given."""

ACTING = {action.cli: action for action in ACTIONS}

GROUPS = {
    group: (*reads, *(action.verb for action in ACTIONS if action.cli.startswith(f"{group} ")))
    for group, reads in READS.items()
}

BARE = {"--until-idle": "0s", "--watch": "2s"}
"""Options whose value may be left out, and the value that they have then."""
SPACED = {"--watch": re.compile(r"\d+(\.\d+)?(ms|s|m|min)?")}
"""Of these, the options whose value may also be the next word, and how it is written."""

EPILOG = "\b\nExit codes:\n" + "\n".join(
    f"  {int(code):>2}  {meaning}" for code, meaning in EXIT_CODES.items()
)


def _coloured(page: str) -> str:
    """Headings stand out on a terminal. Done here, because help with rich costs a quarter second."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return page
    return _HEADING.sub("\\1\x1b[1m\\2\x1b[0m", page)


class BusCommand(TyperCommand):
    """A command with coloured help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {name for one in self.params if getattr(one, "is_flag", False) for name in one.opts}
        whole: list[str] = []
        bare: str | None = None
        for word in args:
            if bare is not None and (spaced := SPACED.get(bare)) and spaced.fullmatch(word):
                whole[-1], bare = f"{bare}={word}", None
                continue
            bare = word if word in BARE and word not in flags else None
            whole.append(f"{word}={BARE[word]}" if bare else word)
        return super().parse_args(ctx, whole)

    def get_help(self, ctx: Any) -> str:
        return _coloured(super().get_help(ctx))


class BusGroup(TyperGroup):
    """A group with coloured help that keeps the order of its commands."""

    def get_help(self, ctx: Any) -> str:
        return _coloured(super().get_help(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Summaries go on in a second line rather than being cut off."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(limit=200)) for name, one in self.commands.items()]
            )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}; {self.advice(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def advice(self, ctx: Any, wanted: str) -> str:
        """What to write instead of a command that there is not."""
        return f"there are {', '.join(self.list_commands(ctx))}"


class ListGroup(BusGroup):
    """A group that lists when no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_bare = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["list", *args] if is_bare else args)


class RootGroup(BusGroup):
    """Finds commands when they are asked for. Errors of the bus become one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (CommandBusError, TimeoutError) as error:
            output.error(error)
            raise typer.Exit(exit_code(error)) from error

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            self.commands[cmd_name] = _build(cmd_name)
        return self.commands.get(cmd_name)

    def advice(self, ctx: Any, wanted: str) -> str:
        import difflib

        known = self.list_commands(ctx)
        known += [f"{group} {part}" for group, parts in GROUPS.items() for part in parts]
        near = [name for name in known if wanted in name.split()]
        near = near or difflib.get_close_matches(wanted, known, 3)
        return f"is it {' or '.join(near[:3])}?" if near else "`commandbus --help` lists them"

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, summaries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(summaries.items()))


def _build(name: str) -> Any:
    """A command, or a group with its commands."""
    if name not in GROUPS:
        built = _typer(add_completion=False)
        built.command(name, cls=BusCommand)(_function(name, name))
        return typer.main.get_command(built)
    summary = next(section[name] for section in SECTIONS.values() if name in section)
    kind: Any = {"cls": ListGroup} if name in LISTING else {"cls": BusGroup, "no_args_is_help": True}
    built = _typer(name=name, help=summary, add_completion=False, **kind)
    for part in GROUPS[name]:
        built.command(part, cls=BusCommand)(_function(f"{name} {part}", part))
    return typer.main.get_command(built)


def _function(command: str, name: str) -> Any:
    """The function of a command: made from the table of actions, or one of a file, where a name that
    would hide a builtin ends with an underscore."""
    if command in ACTING:
        return import_module("commandbus.interfaces.cli.acting").command_of(ACTING[command])
    group = command.split(maxsplit=1)[0]
    file = FILES.get(group, group)
    module = (
        lab_module(file, group) if group in LAB else import_module(f"commandbus.interfaces.cli.{file}")
    )
    name = name.replace("-", "_")
    return getattr(module, name, None) or getattr(module, f"{name}_")


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        **settings,
    )


app = _typer(
    cls=RootGroup,
    name="commandbus",
    no_args_is_help=True,
    help="A durable command bus: send a command, and some worker carries it out.\n\n"
    "The store is named by --url or --context, else COMMANDBUS_URL, else the context in use, else "
    "`url` under [tool.commandbus] in pyproject.toml, else sqlite:///commandbus.db. Lists are tables "
    "on a terminal, TSV in a pipe, and JSON with --json.",
    epilog=EPILOG,
)


def _print_version(asked: bool) -> None:
    if asked:
        from commandbus.interfaces.cli.versions import version

        version()
        raise typer.Exit


@app.callback()
def root(
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The store, for any command.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            help="The store by its name; see `context`.",
            autocompletion=completing.contexts,
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    target.chosen_url = url
    target.chosen_context = context
    if context is not None and url is not None:
        raise CliError("Give --url or --context, not both.", Exit.USAGE)
