"""Actions as the API takes them: a body per action, with a type, a default and a description for each
parameter, and the fields of a form as the same values."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.actions.carrying import params_of_many
from commandbus.interfaces.actions.model import Action, Given, Kind, Param

YEAR = 31_536_000


def body_of(action: Action, *, many: bool = False) -> type[Struct]:
    """The body of an action, or of the same on many commands."""
    params = params_of_many(action.many, action) if many and action.many else action.params
    fields = [_field(param) for param in params]
    is_needed = action.reason == "required" and not many
    fields.append(_field(Param("reason", "Why; kept in the audit.", required=is_needed)))
    if many or action.preview:
        help_text = "Only count the commands; nothing is changed."
        fields.append(_field(Param("preview", help_text, Kind.FLAG)))
    if action.confirm:
        help_text = f"The word {action.confirm}, which confirms that it is meant."
        fields.append(_field(Param("confirm", help_text)))
    words = [*action.name.split("-"), action.subject.noun + "s" * many]
    name = "".join(map(str.capitalize, words))
    # A misspelt condition must not widen what an action does.
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


def _field(param: Param) -> Any:
    """Name, type and default of a parameter; a required one has no default."""
    kind = _kind(param)
    if param.required:
        return param.name, kind
    if param.kind is Kind.DOCUMENT:
        return param.name, kind | UnsetType, UNSET
    if param.kind is Kind.FLAG:
        return param.name, kind, False
    return param.name, kind | None, None if param.default is None else param.parse(param.default)


def _kind(param: Param) -> Any:
    """A type with its bounds and its description."""
    kinds: dict[Kind, tuple[Any, dict[str, Any]]] = {
        Kind.DOCUMENT: (Any, {}),
        Kind.FLAG: (bool, {}),
        Kind.DURATION: (float, {"ge": 0, "le": YEAR}),
        Kind.MOMENT: (datetime, {"tz": True}),
        Kind.PRIORITY: (str | int, {}),
        Kind.INTEGER: (int, {"ge": 1, "le": param.most}),
        Kind.NUMBER: (float, {"ge": 0, "le": param.most}),
        Kind.CHOICE: (Literal[param.choices], {}),
        Kind.WORDS: (list[str], {"max_length": 50}),
        Kind.IDS: (list[UUID], {"max_length": param.most}),
    }
    text = (str, {"min_length": int(param.required), "max_length": param.longest})
    base, bounds = kinds.get(param.kind, text)
    return Annotated[base, Meta(description=param.help, **bounds)]


def given_by(body: Struct) -> Given:
    """What a body has."""
    return {name: value for name, value in msgspec.structs.asdict(body).items() if value is not UNSET}


def entered(params: tuple[Param, ...], form: dict[str, str]) -> Given:
    """What the fields of a form have; an empty one is not given. Raises InvalidArgumentError."""
    given: Given = {}
    for param in params:
        written = form.get(param.name, "").strip()
        if param.kind is Kind.DOCUMENT:
            if written or (param.edits and param.name in form):
                given[param.name] = document(written, f"The {_called(param)}")
        elif written:
            given[param.name] = param.parse(written, param.label)
    for name in ("reason", "confirm"):
        if form.get(name, "").strip():
            given[name] = form[name].strip()
    return given


def _called(param: Param) -> str:
    return "payload" if param.edits else param.name


def document(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"{what} is not JSON: {error}.") from None
    except RecursionError:
        raise InvalidArgumentError(f"{what} is nested too deeply.") from None
