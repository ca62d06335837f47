"""From a stored command to what its handler sees, and from its result to what is stored."""

from __future__ import annotations

from typing import Any

from commandbus.domain import payload
from commandbus.domain.command import Command
from commandbus.domain.moment import as_datetime
from commandbus.domain.outcome import Succeeded, as_result
from commandbus.store.records import Claimed
from commandbus.worker.handlers import Handler
from commandbus.worker.isolation.verdicts import Encoded


def command_of_claimed(claimed: Claimed, data: Any) -> Command[Any]:
    """A command as its handler sees it."""
    return Command(
        claimed.domain,
        claimed.command_type,
        claimed.command_id,
        data,
        claimed.correlation_id,
        claimed.causation_id,
        claimed.reply_to,
        claimed.priority,
        as_datetime(claimed.created_at),
        tuple(payload.decode(claimed.tags)) if claimed.tags else (),
        payload.decode(claimed.headers) if claimed.headers else {},
    )


def result_of(handler: Handler | None, result: Any) -> Succeeded:
    """What is kept of a result, or PayloadError when it is not JSON or does not fit its contract."""
    if isinstance(result, Encoded):
        return Succeeded(result.text)
    contract = None if handler is None else handler.contract
    if contract is None:
        return as_result(result, payload.encode)
    return Succeeded(contract.encode_result(result))
