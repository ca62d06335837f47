"""Carrying out an action: from a row and the values given to the call of its operation, and from the
result to the answer. The same for the command line, the API and the forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.actions.model import Action, Given, Kind, Many, Param
from commandbus.interfaces.search import parse_search


@dataclass(frozen=True, slots=True)
class Call:
    """An operation and its arguments."""

    operation: Callable[..., Any]
    arguments: Given

    @property
    def is_flow(self) -> bool:
        """Whether it is several transactions."""
        return str(self.operation.__annotations__["return"]).startswith("Flow[")


def resolve(operation: str) -> Callable[..., Any]:
    """The operation that a row names."""
    module, _, name = operation.partition(".")
    found: Callable[..., Any] = getattr(import_module(f"commandbus.operations.{module}"), name)
    return found


def call_of(
    action: Action,
    given: Given,
    *,
    preview: bool = False,
    is_secret: Callable[[str], bool] | None = None,
) -> Call:
    """The call for keys, parameters and reason. Raises InvalidArgumentError, also for a preview by the
    value of a secret: its count would say whether the value was guessed."""
    known = (*action.subject.keys, *action.params)
    checked = _complete(action, known, given)
    arguments = dict(action.fixed) | (action.shape(checked) if action.shape else checked)
    data = arguments.get("data")
    keys = [key for path in data for key in path.split(".")] if isinstance(data, dict) else []
    if preview and is_secret is not None and any(map(is_secret, keys)):
        raise InvalidArgumentError("A secret cannot be tried by a preview; act by another condition.")
    if preview and action.preview:
        arguments[action.preview] = True
    return Call(resolve(action.operation), arguments)


def call_of_many(
    action: Action,
    given: Given,
    *,
    preview: bool = False,
    is_secret: Callable[[str], bool] | None = None,
    **more: Any,
) -> Call:
    """The call for conditions, parameters and reason; `more` are arguments of the operation."""
    many = action.many
    assert many is not None
    checked = _complete(action, params_of_many(many, action), given, preview=preview)
    arguments = dict(many.fixed) | _conditions(many, checked, is_secret) | {"preview": preview} | more
    return Call(resolve(many.operation), arguments)


def params_of_many(many: Many, action: Action) -> tuple[Param, ...]:
    own = tuple(param for param in action.params if not param.one_only)
    return (*many.conditions, *many.params, *own)


def _complete(
    action: Action, known: tuple[Param, ...], given: Given, *, preview: bool = False
) -> Given:
    """The values given, with defaults for others. Raises InvalidArgumentError for what is missing."""
    values = {param.name: param.parse(param.default) for param in known if param.default is not None}
    values |= {
        param.name: given[param.name]
        for param in known
        if param.name in given and (given[param.name] is not None or param.kind is Kind.DOCUMENT)
    }
    missing = [param.name for param in known if param.required and values.get(param.name) in (None, "")]
    if missing:
        raise InvalidArgumentError(f"{action.name} needs {' and '.join(missing)}.")
    reason = given.get("reason") or ("preview" if preview else None)
    if reason is None and action.reason == "required":
        raise InvalidArgumentError(f"{action.name} needs a reason: it is kept in the audit.")
    return values | ({} if reason is None else {"reason": reason})


def _conditions(many: Many, values: Given, is_secret: Callable[[str], bool] | None) -> Given:
    """A filter, as in the list of commands, becomes conditions of the operation."""
    text = values.pop("q", None)
    if "status" in values:
        values["status"] = values["status"].upper()
    if not text:
        return values
    search = parse_search(text, is_secret)
    if search.shown:
        raise InvalidArgumentError(f"data.{next(iter(search.shown))} cannot choose commands to act on.")
    if search.parts:
        raise InvalidArgumentError("Commands to act on are chosen by whole ids: give all digits.")
    found = dict(search.conditions)
    status = found.pop("status", None)
    if status is not None and "status" in values:
        values["status"] = str(status)
    elif status not in (None, "PENDING"):
        raise InvalidArgumentError(f"The filter asks for {status} commands; only waiting ones change.")
    if search.command_id is not None:
        found["command_ids"] = [search.command_id]
    for name, value in found.items():
        if values.get(name) not in (None, value):
            raise InvalidArgumentError(f"{name} is given with two values; give one of them.")
    return values | found


def sentence_of(action: Action, given: Given, result: Any) -> str:
    """What was done, in words."""
    if callable(action.done):
        return action.done(given, result)
    return action.done.format(**given)


def answer_of(action: Action, given: Given, result: Any) -> Any:
    """What a program is answered."""
    from commandbus.interfaces.actions import answers

    match action.answers:
        case "Done":
            return answers.Done(sentence_of(action, given, result))
        case "Sent":
            return answers.Sent(result.command_id, result.domain, result.duplicate)
        case _:
            return result


def carry_out(
    bus: Any,
    actor: str,
    call: Call,
    by: tuple[Callable[..., Any], Callable[..., Any]],
) -> Any:
    """The result of a call in the name of `actor`. `by` are the runtime's makers of methods, of an op
    and of a flow; those of asyncio make it an awaitable."""
    make = by[1] if call.is_flow else by[0]
    return make(call.operation)(bus.acting(actor), **call.arguments)
