"""From a stored command to what its handler sees, and from its result to what is stored."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from commandbus.domain import payload
from commandbus.domain.command import Command
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.moment import as_datetime
from commandbus.domain.outcome import Succeeded, as_result
from commandbus.errors import PermanentCommandError
from commandbus.store.columns import among
from commandbus.store.records import CLAIMED, Claimed
from commandbus.worker.handlers import Handler
from commandbus.worker.isolation.verdicts import Encoded

_PLAIN = [column.name for column in among(CLAIMED, Command) if column.content == "plain"]
"""Columns that a handler sees as they are stored."""
_NOTHING = (None,) * len(_PLAIN)
_plain = attrgetter(*_PLAIN)


def command_of_claimed(claimed: Claimed, data: Any) -> Command[Any]:
    """A command as its handler sees it."""
    command = Command(
        claimed.domain,
        claimed.command_type,
        claimed.command_id,
        data,
        claimed.correlation_id,
        None,
        None,
        claimed.priority,
        as_datetime(claimed.created_at),
        tuple(payload.decode(claimed.tags)) if claimed.tags else (),
        payload.decode(claimed.headers) if claimed.headers else {},
    )
    plain = _plain(claimed)
    if plain == _NOTHING:
        return command
    return msgspec.structs.replace(command, **dict(zip(_PLAIN, plain, strict=True)))


def undecodable(wanted: str, error: Exception) -> PermanentCommandError:
    """The failure of a command whose stored form cannot be decoded for its handler."""
    message = f"The payload does not fit {wanted}: {describe_misfit(error)}"
    return PermanentCommandError("UNDECODABLE", message)


def result_of(handler: Handler | None, result: Any) -> Succeeded:
    """What is kept of a result, or PayloadError when it is not JSON or does not fit its contract."""
    if isinstance(result, Encoded):
        return Succeeded(result.text)
    contract = None if handler is None else handler.contract
    if contract is None:
        return as_result(result, payload.encode)
    return Succeeded(contract.encode_result(result))
