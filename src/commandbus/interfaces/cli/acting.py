"""Commands that change something, made from the table of operator actions.

All of them take --reason, --operator, --dry-run, --json and --url. Those that cannot be undone ask
first, and --yes answers.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.domain.ids import short_id
from commandbus.errors import CommandBusError
from commandbus.interfaces.actions.answers import Report, report_of
from commandbus.interfaces.actions.carrying import (
    Call,
    answer_of,
    call_of,
    call_of_many,
    carry_out,
    sentence_of,
)
from commandbus.interfaces.actions.model import Action, Given, Kind, Param
from commandbus.interfaces.cli import commands, completing, options, output, subjects, target, text
from commandbus.interfaces.cli.apps import load_registry
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.stopping import Stop, stopping
from commandbus.runtimes.threads.bus import SyncTroubleshootingQueue
from commandbus.runtimes.threads.facade import blocking, blocking_flow

if TYPE_CHECKING:
    from uuid import UUID

    from commandbus.domain.command import CommandRecord
    from commandbus.sync import SyncCommandBus

_TYPES: dict[Kind, Any] = {
    Kind.FLAG: bool,
    Kind.INTEGER: int,
    Kind.NUMBER: float,
    Kind.WORDS: list[str],
}


def command_of(action: Action) -> Callable[..., None]:
    """A function with the arguments and options of an action, for typer."""

    def command(**values: Any) -> None:
        Run(action, values).carry_out()

    signature = inspect.Signature(list(_parameters(action)))
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    command.__doc__ = "\n\n".join(filter(None, (action.summary, _choice(action), action.details)))
    return command


def _choice(action: Action) -> str:
    if action.many is None:
        return ""
    flags = ", ".join(param.options[0] for param in action.many.conditions[1:-1])
    return f"By id, or with --all every {action.many.noun} that meets all of {flags}."


def _parameters(action: Action) -> Any:
    *others, last = action.subject.keys or (None,)
    if last is not None:
        metavar = last.metavar or last.name.upper()
        common: Any = {"help": last.help, "autocompletion": completing.subject(action)}
        if not takes_ids(action):
            yield _made(last.name, str, typer.Argument(metavar=metavar, **common))
        elif action.many is None:
            yield _made(last.name, list[str], typer.Argument(metavar=f"{metavar}...", **common))
        else:
            shown = typer.Argument(metavar=f"[{metavar}]...", show_default=False, **common)
            yield _made(last.name, list[str] | None, shown, None)
            yield _made(
                "everything", bool, typer.Option("--all", help="All that match the filters."), False
            )
    own = {param.name for param in action.params}
    for key in others:
        if key.name not in own:
            help_text = f"The {action.subject.noun}'s domain; with --all, only this one."
            help_text = help_text if action.many else f"The {action.subject.noun}'s domain."
            shown = typer.Option(
                "--domain",
                "-d",
                help=help_text,
                show_default="looked for",
                autocompletion=completing.domains,
            )
            yield _made(key.name, str | None, shown, None)
    for param in sorted(_own(action), key=lambda param: not param.positional):
        yield _of_param(param)
    if action.subject.noun == "command" and any(param.edits for param in action.params):
        help_text = "module:registry, to check --data against the handler's type."
        yield _made("app", str | None, typer.Option("--app", help=help_text), None)
    must = action.reason == "required" and not action.reason_default
    reason = typer.Option("--reason", help="Why; kept in the audit trail.")
    yield _made("reason", str, reason) if must else _made("reason", str | None, reason, None)
    yield _made("operator", options.Operator, None, None)
    yield _made("dry_run", options.DryRun, None, False)
    if action.asks or action.many is not None:
        yield _made("yes", options.Yes, None, False)
    yield _made("url", options.Url, None, None)
    yield _made("json", options.Json, None, False)


def _own(action: Action) -> list[Param]:
    """Its parameters, and for many commands the conditions; their domain is a key already."""
    if action.many is None:
        return list(action.params)
    conditions = [p for p in action.many.conditions if p.name not in ("command_ids", "domain")]
    return [*action.params, *action.many.params, *conditions]


def takes_ids(action: Action) -> bool:
    """Whether it takes the ids of several commands; a positional parameter leaves room for one."""
    return action.subject.noun == "command" and not any(param.positional for param in action.params)


def _of_param(param: Param) -> inspect.Parameter:
    kind = _TYPES.get(param.kind, str)
    help_text = f"{param.help} JSON, @file or -." if param.kind is Kind.DOCUMENT else param.help
    shown: Any = {"help": help_text, "autocompletion": _completion(param)}
    if param.metavar or param.positional:
        shown["metavar"] = param.metavar or param.name.removeprefix("command_").upper()
    made = typer.Argument(**shown) if param.positional else typer.Option(*param.options, **shown)
    if param.required:
        return _made(param.name, kind, made)
    if param.kind is Kind.FLAG:
        return _made(param.name, kind, made, False)
    return _made(param.name, kind | None, made, param.default)


def _completion(param: Param) -> Any:
    if param.kind is Kind.CHOICE:
        return completing.choice(*param.choices)
    known: dict[str, Any] = {
        "domain": completing.domains,
        "command_type": completing.types,
        "workers": completing.workers,
    }
    return known.get(param.name)


def _made(
    name: str, kind: Any, shown: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    annotation = kind if shown is None else Annotated[kind, shown]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


@contextmanager
def watched(verb: str, total: int) -> Iterator[tuple[Stop, Callable[..., bool]]]:
    """A bar for work on so many commands, and Ctrl-C as a request to stop: the function given is for
    an operation that calls it with the number done so far, and ends when it returns False."""
    with stopping() as stop, output.progress(verb, total) as advance:
        so_far = 0

        def progress(done: int, matched: int = total) -> bool:
            nonlocal so_far
            advance(done - so_far)
            so_far = done
            return not stop.asked

        yield stop, progress


def unmasked(action: Action, given: Given, present: Any) -> Given:
    """Masks in an edited payload stand for the values that they hide in `present`, as in the dashboard;
    in another place and in other documents they are refused."""
    found = dict(given)
    for param in action.params:
        if param.kind is Kind.DOCUMENT and param.name in given:
            from commandbus.interfaces.redaction import Redaction, without_masks

            value = given[param.name]
            found[param.name] = (
                Redaction().restore(value, present) if param.edits else without_masks(value, param.name)
            )
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a command: its action, and the values of its options."""

    action: Action
    values: Given

    def carry_out(self) -> None:
        action, values = self.action, self.values
        given = self._given()
        if takes_ids(action):
            self._check_choice(given)
        with target.opened(values["url"], create=action.exists == "created") as bus:
            if not takes_ids(action):
                self._act_on_one(bus, given)
            elif values.get("everything"):
                self._act_on_all(bus, given)
            else:
                self._act_on_each(bus, given)

    def _given(self) -> Given:
        """The values of the options that were given, as their types."""
        given: Given = {}
        for param in _own(self.action):
            value = self.values[param.name]
            if value is None or value is False or value == []:
                continue
            called = param.metavar or param.name if param.positional else param.options[0]
            if param.kind is Kind.DOCUMENT:
                value = options.document(value, called)
            elif isinstance(value, str):
                value = param.parse(value, called)
            given[param.name] = value
        for key in self.action.subject.keys:
            if key.name not in given and isinstance(self.values.get(key.name), str):
                given[key.name] = self.values[key.name]
        reason = self.values["reason"] or self.action.reason_default
        return given | ({"reason": reason} if reason else {})

    def _check_choice(self, given: Given) -> None:
        """The commands named, or all that match; never both, never neither."""
        ids, everything = self.values["command_id"], bool(self.values.get("everything"))
        if everything == bool(ids):
            raise CliError("Give the ids of commands, or --all with filters; not both.", Exit.USAGE)
        for param in self.action.params:
            if param.one_only and param.name in given and len(ids or []) != 1:
                raise CliError(
                    f"{param.options[0]} is for one command: give exactly one ID.", Exit.USAGE
                )
        many = self.action.many
        if everything and many is not None and not many.everything:
            flags = [param.options[0] for param in many.conditions[1:-1]]
            if not any(param.name in given for param in many.conditions):
                raise CliError(f"Say which: --all needs {' or '.join(flags)}.", Exit.USAGE)

    def _act_on_one(self, bus: SyncCommandBus, given: Given) -> None:
        action, preview = self.action, self.values["dry_run"]
        call_of(action, given | dict.fromkeys([key.name for key in action.subject.keys], "x"))
        what = subjects.describe(action, given)
        if action.exists == "must":
            given, what = subjects.find(bus, action, given)
        if action.counted is not None:
            self._act_in_pieces(bus, given, what)
            return
        if preview:
            self._say({"would": action.verb, "subject": what}, f"would {action.verb} {what}")
            return
        call = call_of(action, unmasked(action, given, subjects.payload(bus, action, given)))
        if action.asks:
            options.confirm(f"{action.verb.capitalize()} {what}?", yes=self.values["yes"])
            with output.working(f"{action.verb} {what}"):
                result = self._run(bus, call)
        else:
            result = self._run(bus, call)
        if self.values["json"]:
            output.json_document(output.masked(answer_of(action, given, result)))
        elif action.answers != "Sent" or output.is_terminal():
            output.done(sentence_of(action, given, result))
        if action.answers == "Sent" and not self.values["json"]:
            output.write(str(result.command_id))

    def _act_in_pieces(self, bus: SyncCommandBus, given: Given, what: str) -> None:
        """An action whose operation finds the commands: they are counted for the question and the
        bar, and Ctrl-C ends it between two pieces."""
        action, dry_run, yes = self.action, self.values["dry_run"], self.values["yes"]
        assert action.counted is not None
        matched: int | None = None
        seen: Any = None
        if dry_run or not yes or output.is_terminal():
            with output.working("count commands"):
                seen = self._run(bus, call_of(action, given, preview=True))
            matched = action.counted(seen)
            what = f"{text.plural(matched, 'command')} {what}"
        if dry_run:
            self._say(answer_of(action, given, seen), f"would {action.verb} {what}")
            self._tell_left(seen)
            return
        options.confirm(f"{action.verb.capitalize()} {what}?", yes=yes)
        call = call_of(action, given)
        with watched(action.verb, matched or 0) as (stop, progress):
            call.arguments["progress"] = progress
            result = self._run(bus, call)
        if self.values["json"]:
            output.json_document(answer_of(action, given, result))
        else:
            output.done(sentence_of(action, given, result))
        done = action.counted(result)
        if stop.asked and (matched is None or done < matched):
            rest = "the rest" if matched is None else text.plural(matched - done, "command")
            output.warn(f"stopped: {rest} left as before")
            raise typer.Exit(Exit.INTERRUPTED)
        self._tell_left(result)

    def _tell_left(self, result: Any) -> None:
        left = self.action.left(result) if self.action.left else []
        for message in left:
            output.warn(message)
        if left:
            raise typer.Exit(Exit.FAILURE)

    def _say(self, document: Any, message: str) -> None:
        output.json_document(document) if self.values["json"] else output.note(message)

    def _act_on_each(self, bus: SyncCommandBus, given: Given) -> None:
        """A command that is refused is reported, and the rest goes on."""
        action, json = self.action, self.values["json"]
        call_of(action, given | {"domain": "x", "command_id": "x"})  # before anything is looked for
        records = [commands.find(bus, one, given.get("domain")) for one in self.values["command_id"]]
        if self.values["dry_run"]:
            self._preview_each(records)
            return
        sentences: Counter[str] = Counter()
        answers: list[Any] = []
        acted: list[UUID] = []
        for record in records:
            keys = {"domain": record.domain, "command_id": record.command_id}
            try:
                result = self._run(bus, call_of(action, unmasked(action, given, record.data) | keys))
            except CommandBusError as error:
                if len(records) == 1 and not json:
                    raise
                output.error(f"{record.command_id}: {error}")
                continue
            sentences[sentence_of(action, given, result)] += 1
            answers.append(answer_of(action, given, result))
            acted.append(record.command_id)
        refused = len(records) - len(acted)
        self._tell(Report(len(records), len(acted), refused, False, acted), sentences, answers)

    def _preview_each(self, records: list[CommandRecord]) -> None:
        fitting = [record for record in records if self.action.fits({str(record.status)})]
        ids = [record.command_id for record in fitting]
        report = Report(len(fitting), 0, 0, preview=True, examples=ids)
        self._tell_would(report, "command", fitting, commands.COLUMNS)
        for record in records:
            if record not in fitting:
                output.warn(f"{record.command_id} would be refused: it is {record.status}")

    def _act_on_all(self, bus: SyncCommandBus, given: Given) -> None:
        action, many = self.action, self.action.many
        assert many is not None
        more: Given = {"everything": True} if many.everything else {}
        given = unmasked(action, given, None)
        seen = self._run(bus, call_of_many(action, given, preview=True, **more))
        shown = partial(subjects.examples, bus, many, given, seen)
        if self.values["dry_run"]:
            self._tell_would(report_of(seen, True), many.noun, *shown())
            return
        if not seen.matched:
            output.note(f"no {many.noun} matches")
        else:
            if output.is_interactive() and not self.values["yes"]:
                output.table(*shown())
            what = text.plural(seen.matched, many.noun)
            options.confirm(f"{action.verb.capitalize()} {what}?", yes=self.values["yes"])
        with watched(action.verb, seen.matched) as (_, progress):
            more["progress"] = progress
            report = report_of(self._run(bus, call_of_many(action, given, **more)), False)
        past = action.done if isinstance(action.done, str) else many.done
        self._tell(report, Counter({past: report.done} if seen.matched else {}), [], many.noun)

    def _tell_would(self, report: Report, noun: str, rows: Any, columns: Any) -> None:
        what = text.plural(report.matched, noun) if report.matched else "nothing"
        verb, colon = self.action.verb, ":" if rows else ""
        self._say({"would": verb} | text.as_plain(report), f"would {verb} {what}{colon}")
        if not self.values["json"]:
            output.table(rows, columns)

    def _tell(
        self, report: Report, sentences: Counter[str], answers: list[Any], noun: str = "command"
    ) -> None:
        if self.values["json"]:
            output.json_document(text.as_plain(report) | {"answers": answers})
        else:
            for words, count in sentences.items():
                output.done(f"{text.plural(count, 'command')} {words}")
            for answer in answers if self.action.answers == "Sent" else ():
                output.write(str(answer.command_id))
        if report.refused:
            output.warn(f"{text.plural(report.refused, 'command')} refused")
        left = text.plural(report.matched - report.done - report.refused, noun)
        if report.failed:
            what = f"{report.failed:,} of the {report.done:,} retried first did not complete"
            output.warn(f"{what}: {left} left as before")
            for command_id in report.failed_ids[:3]:
                output.note(f"  commandbus show {short_id(command_id)}")
        elif report.stopped:
            output.warn(f"stopped: {left} left as before")
            raise typer.Exit(Exit.INTERRUPTED)
        if report.refused or report.failed:
            raise typer.Exit(Exit.FAILURE)

    def _run(self, bus: SyncCommandBus, call: Call) -> Any:
        host: Any = bus
        if self.values.get("app"):
            host = SyncTroubleshootingQueue(bus, load_registry(self.values["app"]))
        actor = options.acting(self.values["operator"])
        return carry_out(host, actor, call, (blocking, blocking_flow))
