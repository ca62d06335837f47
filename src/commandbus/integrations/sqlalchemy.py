"""For SQLAlchemy, where the bus is in another database than the session: sends that follow the commit.

Where both are in one database, `bus.within(session)` is better: it is part of the transaction. Here a
process that dies between the commit and the send has not sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import await_only

from commandbus.domain.command import SendOptions, SendRequest, SendResult, as_request
from commandbus.errors import ConfigurationError
from commandbus.integrations.later import prepared
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.runtimes.threads.bus import SyncCommandBus

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession  # needs greenlet, which plain sessions do not

R = TypeVar("R")
_KEY = "commandbus"


@overload
def send_after_commit(
    session: Session | AsyncSession,
    bus: SyncCommandBus | CommandBus,
    request: SendRequest[R],
    /,
    **options: Unpack[SendOptions],
) -> SendResult[R]: ...
@overload
def send_after_commit(
    session: Session | AsyncSession,
    bus: SyncCommandBus | CommandBus,
    domain: str,
    command_type: str,
    data: Any = None,
    **options: Unpack[SendOptions],
) -> SendResult[Any]: ...
def send_after_commit(
    session: Session | AsyncSession,
    bus: SyncCommandBus | CommandBus,
    domain: str | SendRequest[Any],
    command_type: str | None = None,
    data: Any = None,
    **options: Unpack[SendOptions],
) -> SendResult[Any]:
    """Send a command when, and only when, the session's transaction commits; the result has its id. A
    rollback forgets it, and that of a savepoint what was meant inside. The command and the options are
    those of `send`. It is not awaited; a CommandBus needs an AsyncSession, a SyncCommandBus a Session.

    Raises at once what is wrong with the arguments. What the send itself raises, such as
    StoreUnavailable, comes out of `commit()`, although the transaction is committed then.
    """
    inner: Session | None = getattr(session, "sync_session", None)  # that of an AsyncSession
    if (inner is not None) != isinstance(bus, CommandBus):
        raise ConfigurationError(
            f"{type(session).__name__} does not fit {type(bus).__name__}; give a CommandBus with an "
            "AsyncSession, and a SyncCommandBus with a Session."
        )
    request, result = prepared(bus.scope, as_request(domain, command_type, data, options))
    if inner is None:
        inner = cast("Session", session)
    if _KEY not in inner.info:
        event.listen(inner, "after_commit", _committed)
        event.listen(inner, "after_soft_rollback", _rolled_back)
    if not inner.in_transaction():
        inner.begin()
    transaction = inner.get_nested_transaction() or inner.get_transaction()
    inner.info.setdefault(_KEY, []).append((transaction, bus, request))
    return result


def _committed(session: Session) -> None:
    committed = session.get_transaction()
    if session.in_nested_transaction() or committed is None:
        return
    # A session that was closed in between has left behind what was meant before that.
    meant = [one for one in session.info[_KEY] if _is_within(one[0], committed)]
    session.info[_KEY] = []
    for bus in dict.fromkeys(bus for _, bus, _ in meant):
        sending = bus.send_many([request for _, its, request in meant if its is bus])
        if isinstance(bus, CommandBus):
            await_only(sending)


def _rolled_back(session: Session, ended: SessionTransaction) -> None:
    session.info[_KEY] = [one for one in session.info[_KEY] if not _is_within(one[0], ended)]


def _is_within(transaction: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while transaction is not None and transaction is not outer:
        transaction = transaction.parent
    return transaction is outer
