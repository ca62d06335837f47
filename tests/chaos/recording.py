"""A store and sessions that write into a journal what was claimed, settled and refused.

The op of a claim ends before its transaction is committed, so what it returned is written down only
after the session has run it: what stands in the journal was durable then.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from commandbus.errors import LeaseLost
from commandbus.store.records import Claimed, ClaimReply, ClaimRequest, Settlement, SettleReport
from tests.os_processes.journal import Journal, now

FINAL = {"Succeeded", "Rejected", "Parked", "Canceled"}
Order = tuple[str, Any, float]
"""What an op is about: claim or settle, its argument, and when it began."""
_in_transaction: ContextVar[list[Order] | None] = ContextVar("in_transaction", default=None)
"""Settles inside a handler's transaction, which are durable only with its commit."""


class Recording:
    """What both sessions write down, and the store whose ops they recognise."""

    def __init__(self, store: Any, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self._orders: dict[int, tuple[str, Any, Any]] = {}
        """By the identity of their ops, which are kept so that no other op gets it."""
        self._ids: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, request: ClaimRequest) -> Any:
        return self._remember("claim", request, self._store.claim(request))

    def settle(self, batch: Sequence[Settlement]) -> Any:
        op = self._store.settle(batch)
        inside = _in_transaction.get()
        if inside is not None:
            inside.append(("settle", batch, now()))
            return op
        return self._remember("settle", batch, op)

    def _remember(self, kind: str, about: Any, op: Any) -> Any:
        self._orders[id(op)] = kind, about, op
        return op

    def begin(self, op: Any) -> Order | None:
        """What an op is about, if it is one to write down."""
        order = self._orders.pop(id(op), None)
        if order is not None and order[0] == "claim":
            self._journal.write("claiming")
        return None if order is None else (order[0], order[1], now())

    def ended(self, order: Order | None, result: Any) -> None:
        if order is None:
            return
        kind, about, began = order
        if kind == "claim":
            self._claimed(about, result, began)
        else:
            self._settled(about, result, began)

    def failed(self, order: Order | None, error: BaseException) -> None:
        """It may have been committed or not."""
        if order is not None:
            kind, about, began = order
            members = [self._settlement(s) for s in about] if kind == "settle" else []
            self._journal.write(f"{kind}_unknown", began=began, error=repr(error), members=members)

    def refused(self, order: Order) -> None:
        _, batch, began = order
        self._journal.write("refused", began=began, members=[self._settlement(s) for s in batch])

    def _claimed(self, request: ClaimRequest, reply: ClaimReply, began: float) -> None:
        if reply.claimed:
            self._ids |= {claimed.seq: str(claimed.command_id) for claimed in reply.claimed}
            members = [_claim(claimed) for claimed in reply.claimed]
            self._journal.write("claimed", worker=request.worker, began=began, members=members)

    def _settled(self, batch: Sequence[Settlement], report: SettleReport, began: float) -> None:
        lost = set(report.lost)
        accepted = [self._settlement(s) for s in batch if s.seq not in lost]
        refused = [self._settlement(s) for s in batch if s.seq in lost]
        if accepted:
            self._journal.write("settled", began=began, members=accepted)
        if refused:
            self._journal.write("refused", began=began, members=refused)

    def _settlement(self, settlement: Settlement) -> dict[str, Any]:
        outcome = type(settlement.outcome).__name__
        return {
            "id": self._ids[settlement.seq],
            "token": settlement.lease_id,
            "attempt": settlement.attempt,
            "outcome": outcome,
            "final": outcome in FINAL,
        }


def _claim(claimed: Claimed) -> dict[str, Any]:
    return {
        "id": str(claimed.command_id),
        "token": claimed.lease_id,
        "attempt": claimed.attempt,
        "crashes": claimed.crashes,
        "priority": claimed.priority,
        "seq": claimed.seq,
        "domain": claimed.domain,
    }


class RecordingSession:
    def __init__(self, session: Any, recording: Recording) -> None:
        self._session, self._recording = session, recording

    def run(self, op: Any, *, read: bool = False) -> Any:
        order = self._recording.begin(op)
        try:
            result = self._session.run(op, read=read)
        except BaseException as error:
            self._recording.failed(order, error)
            raise
        self._recording.ended(order, result)
        return result


class AsyncRecordingSession:
    def __init__(self, session: Any, recording: Recording) -> None:
        self._session, self._recording = session, recording

    async def run(self, op: Any, *, read: bool = False) -> Any:
        order = self._recording.begin(op)
        try:
            result = await self._session.run(op, read=read)
        except BaseException as error:
            self._recording.failed(order, error)
            raise
        self._recording.ended(order, result)
        return result


class _Transaction:
    """A handler's transaction: the outcome inside it is written down with its commit."""

    def __init__(self, transaction: Any, recording: Recording) -> None:
        self._transaction, self._recording = transaction, recording
        self._order: Order | None = None
        self._report: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    @property
    def session(self) -> Any:
        return self

    @contextmanager
    def _settling(self) -> Iterator[list[Any]]:
        """A list for what the op returns."""
        orders: list[Order] = []
        result: list[Any] = []
        token = _in_transaction.set(orders)
        try:
            yield result
        except LeaseLost:
            if orders:
                self._recording.refused(orders[0])
            raise
        finally:
            _in_transaction.reset(token)
        if orders:
            self._order, self._report = orders[0], result[0]

    @contextmanager
    def _recording_last(self, op: Any) -> Iterator[list[Any]]:
        """The outcome as the last op of the transaction; a list for what it returns."""
        order = self._recording.begin(op)
        result: list[Any] = []
        try:
            yield result
        except LeaseLost:
            if order is not None:
                self._recording.refused(order)
            raise
        self._order, self._report = order, result[0]

    @contextmanager
    def _committing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._recording.failed(self._order, error)
            raise
        self._recording.ended(self._order, self._report)


class RecordingTransaction(_Transaction):
    def run(self, op: Any, *, read: bool = False) -> Any:
        with self._settling() as result:
            result.append(self._transaction.session.run(op, read=read))
        return result[0]

    def record(self, op: Any) -> Any:
        with self._recording_last(op) as result:
            result.append(self._transaction.record(op))
        return result[0]

    def commit(self) -> None:
        with self._committing():
            self._transaction.commit()


class AsyncRecordingTransaction(_Transaction):
    async def run(self, op: Any, *, read: bool = False) -> Any:
        with self._settling() as result:
            result.append(await self._transaction.session.run(op, read=read))
        return result[0]

    async def record(self, op: Any) -> Any:
        with self._recording_last(op) as result:
            result.append(await self._transaction.record(op))
        return result[0]

    async def commit(self) -> None:
        with self._committing():
            await self._transaction.commit()


def record(engine: Any, journal: Journal) -> None:
    """Make a worker of this engine write down everything that it claims and settles."""
    recording = Recording(engine.store, journal)
    engine.store = recording
    engine.reserved_session = RecordingSession(engine.reserved_session, recording)
    engine.reserved_async_session = AsyncRecordingSession(engine.reserved_async_session, recording)
    begin, begin_async = engine.begin, engine.begin_async

    async def begin_recording(demand: Any) -> Any:
        return AsyncRecordingTransaction(await begin_async(demand), recording)

    engine.begin = lambda demand: RecordingTransaction(begin(demand), recording)
    engine.begin_async = begin_recording
