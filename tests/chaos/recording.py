"""A store and sessions that write into a journal what was claimed, settled and refused.

The op of a claim ends before its transaction is committed, so what it returned is written down only
after the session has run it: what stands in the journal was durable then.
"""

from collections.abc import Sequence
from typing import Any

from commandbus.store.records import Claimed, ClaimReply, ClaimRequest, Settlement, SettleReport
from tests.processes.journal import Journal, now

FINAL = {"Succeeded", "Rejected", "Parked", "Canceled"}


class Recording:
    """What both sessions write down, and the store whose ops they recognise."""

    def __init__(self, store: Any, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self._orders: dict[int, tuple[str, Any]] = {}
        self._ids: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, request: ClaimRequest) -> Any:
        return self._remember("claim", request, self._store.claim(request))

    def settle(self, batch: Sequence[Settlement]) -> Any:
        return self._remember("settle", batch, self._store.settle(batch))

    def _remember(self, kind: str, order: Any, op: Any) -> Any:
        self._orders[id(op)] = kind, order
        return op

    def begin(self, op: Any) -> tuple[str, Any, float] | None:
        """What an op is about, if it is one to write down. Identities are reused: taken once."""
        order = self._orders.pop(id(op), None)
        return None if order is None else (*order, now())

    def ended(self, order: tuple[str, Any, float] | None, result: Any) -> None:
        if order is None:
            return
        kind, about, began = order
        if kind == "claim":
            self._claimed(about, result, began)
        else:
            self._settled(about, result, began)

    def failed(self, order: tuple[str, Any, float] | None, error: BaseException) -> None:
        """It may have been committed or not."""
        if order is not None:
            kind, about, began = order
            members = [self._settlement(s) for s in about] if kind == "settle" else []
            self._journal.write(f"{kind}_unknown", began=began, error=repr(error), members=members)

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


def record(engine: Any, journal: Journal) -> None:
    """Make a worker of this engine write down everything that it claims and settles."""
    recording = Recording(engine.store, journal)
    engine.store = recording
    engine.session = RecordingSession(engine.session, recording)
    engine.async_session = AsyncRecordingSession(engine.async_session, recording)
