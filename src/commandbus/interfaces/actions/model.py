"""A row of the table of operator actions: an action, its subject, and its parameters.

A row names its operation by text, because `commandbus --help` reads the table and must not import the
operations. A test resolves every name and compares the parameters with the operation's signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.cli.text import parse_duration

TRUE = ("on", "true", "1", "yes")


class Kind(StrEnum):
    """The type of a parameter: how it is entered, and what the API takes."""

    TEXT = "text"
    ID = "id"
    DURATION = "duration"
    MOMENT = "moment"
    DOCUMENT = "document"
    PRIORITY = "priority"
    FLAG = "flag"
    INTEGER = "integer"
    NUMBER = "number"
    CHOICE = "choice"
    WORDS = "words"
    IDS = "ids"


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of an action, named as in its operation."""

    name: str
    help: str
    kind: Kind = Kind.TEXT
    required: bool = False
    default: str | None = None
    """As it would be entered. Without one, a parameter that is not given is not passed on."""
    choices: tuple[str, ...] = ()
    longest: int = 500
    most: int = 1_000_000
    flags: tuple[str, ...] = ()
    """The option on the command line, where it is not the name."""
    metavar: str | None = None
    positional: bool = False
    """An argument of the command line, not an option."""
    initial: str = ""
    """What a form begins with, where there is no default."""
    edits: bool = False
    """Replaces a document of the subject. A form shows the present one, with masks for secrets."""
    one_only: bool = False
    """Not for an action on many commands."""

    @property
    def label(self) -> str:
        return self.name.removeprefix("command_").replace("_", " ").capitalize()

    @property
    def options(self) -> tuple[str, ...]:
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    def parse(self, entered: str, called: str = "") -> Any:
        """The value of what was entered in a form or on the command line, but for documents. Raises
        InvalidArgumentError that calls the parameter by its option, or else by its name."""
        called = called or self.name
        try:
            match self.kind:
                case Kind.DURATION:
                    return parse_duration(entered, called)
                case Kind.MOMENT:
                    moment = datetime.fromisoformat(entered)
                    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
                case Kind.PRIORITY:
                    return int(entered) if entered.isdecimal() else entered
                case Kind.INTEGER:
                    return int(entered)
                case Kind.NUMBER:
                    return float(entered)
                case Kind.FLAG:
                    return entered.lower() in TRUE
                case Kind.WORDS | Kind.IDS:
                    return entered.split()
                case Kind.CHOICE:
                    return self._chosen(entered, called)
                case _:
                    return entered
        except InvalidArgumentError:
            raise
        except ValueError as error:
            reason = {
                Kind.DURATION: f"{error}.",
                Kind.MOMENT: f"{called} must be a moment such as 2030-05-17T08:00Z, not {entered!r}.",
            }.get(self.kind, f"{called} must be a number, not {entered!r}.")
            raise InvalidArgumentError(reason) from None

    def _chosen(self, entered: str, called: str) -> str:
        if entered.lower() not in self.choices:
            known = ", ".join(self.choices)
            raise InvalidArgumentError(f"{called.lstrip('-')} must be one of {known}, not {entered!r}.")
        return entered.lower()


@dataclass(frozen=True, slots=True)
class Subject:
    """What an action is about, and where it is found."""

    noun: str
    keys: tuple[Param, ...]
    """What names it, in the order of its address; the last one is the argument of the command line."""
    listed: str
    """The address of all of them."""
    page: str = ""
    """The page of one, where it is not `listed` and the keys."""
    api: str = ""
    """Where the API has them, if not at `listed`."""
    asked: str = ""
    """Where the forms are that ask for the keys, if a name at `listed` could be taken for a form."""

    @property
    def place(self) -> str:
        """The address of one in the API and of its forms."""
        return (self.api or self.listed) + "".join(f"/{{{key.name}}}" for key in self.keys)

    @property
    def shown(self) -> str:
        return self.page or self.place


@dataclass(frozen=True, slots=True)
class Many:
    """The same action on many commands: those named, or those that meet all conditions."""

    operation: str
    noun: str
    conditions: tuple[Param, ...]
    params: tuple[Param, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    done: str = ""
    """The description, where the row makes it by a function."""
    everything: bool = False
    """Whether all of them may be meant, without any condition."""


Given = dict[str, Any]
Done = str | Callable[[Given, Any], str]


@dataclass(frozen=True, slots=True)
class Action:
    """A row. `done` completes "The command was …" for a command, and is a sentence for the others: a
    template over keys and parameters, or a function of these and of the operation's result."""

    name: str
    subject: Subject
    cli: str
    """The command of the command line: `cancel`, `queue pause`."""
    operation: str
    """`module.function` of the package `commandbus.operations`."""
    summary: str
    done: Done
    params: tuple[Param, ...] = ()
    details: str = ""
    reason: Literal["optional", "required"] = "optional"
    reason_default: str = ""
    """What the command line says where a required reason is not given."""
    confirm: str = ""
    """Of a dangerous action, the word to repeat in a form and in the API: a template over the keys."""
    exists: Literal["must", "may", "created"] = "must"
    """Whether its subject has to exist, or is created by it."""
    many: Many | None = None
    answers: str = "Done"
    """What the API and `--json` answer, by its name in `answers.py`."""
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the operation that are always the same."""
    shape: Callable[[Given], Given] | None = None
    """Makes arguments of the operation from keys and parameters; a check may be here, too."""
    left: Callable[[Any], list[str]] | None = None
    """What of it could not be done, for a warning; the exit code is 1 then."""
    preview: str = ""
    """The operation's own parameter that makes it a preview."""
    meant: Callable[[Given], str] | None = None
    """What it is about in words, where its subject has no keys."""
    counted: Callable[[Any], int] | None = None
    """How many commands its report has. The operation works in pieces, and calls `progress`."""
    when: tuple[str, ...] = ()
    """The states of its subject that it is for; all, without any."""
    offered: bool = True
    """Whether the page of its subject offers it, in these states."""
    back: str = ""
    """The page to return to, where it is not that of the subject."""
    button: str = ""
    style: Literal["", "main", "danger"] = ""

    @property
    def path(self) -> str:
        return f"{self.subject.place}/{self.name}"

    @property
    def list_path(self) -> str:
        """Where it has no subject in its address: for many, or for one that a form asks for."""
        return f"{self.subject.asked or self.subject.api or self.subject.listed}/{self.name}"

    @property
    def word(self) -> str:
        return self.button or self.name.replace("-", " ").capitalize()

    @property
    def verb(self) -> str:
        return self.cli.split()[-1]

    @property
    def own_page(self) -> bool:
        """Whether it needs more room than a line of another page."""
        return bool(self.confirm) or len(self.params) > 4

    @property
    def asks(self) -> bool:
        """Whether the command line asks before it."""
        return self.style == "danger" and self.subject.noun != "command"

    def fits(self, states: set[str]) -> bool:
        """Whether it is for a subject in these states."""
        return not self.when or bool(states & set(self.when))
