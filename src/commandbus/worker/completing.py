"""Completion inside a transaction of the handler's own: `context.complete(result, within=session)`.

The outcome is written by the same settle as any other, on the handler's connection, so it commits with
the handler's effects or not at all, and only while the lease is valid. The handler's code commits, so
the worker looks once the handler has ended: an outcome that is there is not written again, and one that
is missing makes the run a failure. When even the look fails, a failure is reported as well: the store
changes nothing by it if the outcome is there.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

import msgspec

from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.outcome import Succeeded
from commandbus.errors import ConfigurationError, LeaseLost, SchemaOutdated, TransientCommandError
from commandbus.store.op import Op
from commandbus.store.port import Store
from commandbus.store.records import Claimed, Settlement, SettleReport
from commandbus.store.session import Engine

logger = logging.getLogger("commandbus.worker")


class Completion(msgspec.Struct, frozen=True):
    """What a handler has written in its own transaction."""

    settlement: Settlement
    report: SettleReport


class NotCommitted(TransientCommandError):  # noqa: N818 - what the handler did not do
    """The handler returned, and the transaction in which it completed its command was not committed."""

    def __init__(self) -> None:
        super().__init__(
            "NOT_COMMITTED",
            "The handler called context.complete(within=…) and returned, but that transaction was not "
            "committed: commit it before the handler returns, or raise when it was rolled back.",
        )


def complete_within(store: Store, settlement: Settlement, lost: LeaseLost) -> Op[Completion]:
    """Write the outcome; an op for the handler's own connection. Raises `lost` when the lease is gone,
    and ConfigurationError when the connection leads to another database."""
    claimed = settlement.claimed
    assert claimed is not None
    try:
        report = yield from store.settle([settlement])
        if report.lost:
            # The store that the worker claimed from has the command, whatever became of its lease.
            if not (yield from store.find(claimed.command_id, claimed.domain)):
                raise _elsewhere(claimed)
            raise lost
    except SchemaOutdated:
        raise _elsewhere(claimed) from None
    return Completion(settlement, report)


def _elsewhere(claimed: Claimed) -> ConfigurationError:
    return ConfigurationError(
        f"The connection given as within= leads to another database than the one that has command "
        f"{claimed.command_id}; effects and outcome commit together in one database only. Use a "
        "connection to the database of the bus, or return the result instead."
    )


class Judge(Protocol):
    """What decides about runs; see Execution."""

    engine: Engine
    own_transactions: bool

    def failed(self, call: Any, error: BaseException, ran: int) -> Settlement: ...
    def answered(self, call: Any) -> None: ...
    def settled(self, report: SettleReport) -> None: ...


def confirm(judge: Judge, call: Any, settlement: Settlement) -> Op[Settlement]:
    """The settlement of a run whose handler completed its command in a transaction of its own."""
    judge.own_transactions = True
    done: Completion = call.context.completion
    claimed: Claimed = call.claimed
    found = yield from judge.engine.store.find(claimed.command_id, claimed.domain)
    if found and found[0].status is CommandStatus.COMPLETED and found[0].attempts == claimed.attempt:
        if isinstance(settlement.outcome, Succeeded):
            judge.answered(call)
        else:
            logger.warning(
                "%s %s failed after its transaction was committed: it stays COMPLETED",
                claimed.command_type,
                claimed.command_id,
            )
        judge.settled(done.report)
        return msgspec.structs.replace(done.settlement, recorded=True)
    return unconfirmed(judge, call, settlement)


def unconfirmed(judge: Judge, call: Any, settlement: Settlement) -> Settlement:
    """The same without asking the store: a success counts as not committed."""
    if isinstance(settlement.outcome, Succeeded):
        return judge.failed(call, NotCommitted(), settlement.ran)
    return settlement
