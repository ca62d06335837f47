"""Bulk actions: actions on many commands that go on while the operator looks elsewhere.

A bulk action is a document in the store, so that every process of a dashboard shows it and can stop it.
The process that began it carries it out, one command per transaction, and writes each second how
far it is. Each command has the action in its own trail; the bulk action is in the list of actions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

import msgspec

from commandbus.errors import CommandBusError, InvalidOperationError, NotFoundError
from commandbus.interfaces.web.stores import Stores
from commandbus.operations.actions import record_action
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op

logger = logging.getLogger("commandbus.dashboard")

KIND = "dashboard.bulk"
SAVE_SECONDS = 1.0
SILENT = timedelta(seconds=15)
"""A bulk action whose process wrote nothing for so long is interrupted."""
KEPT = timedelta(days=7)
LISTED = 20

Progress = Callable[[int, int], bool]
Work = Callable[[Progress], Awaitable[Any]]


class Bulk(msgspec.Struct, frozen=True):
    bulk_id: str
    title: str
    """What is done, such as "Retry"."""
    conditions: dict[str, str]
    """Which commands, by the labels of the form."""
    again: str
    """The page with the same conditions, to start it again."""
    actor: str
    reason: str
    began_at: datetime
    saved_at: datetime
    ended_at: datetime | None = None
    matched: int = 0
    done: int = 0
    refused: int = 0
    failed: int = 0
    failed_ids: list[str] = []
    state: Literal["running", "done", "stopped", "failed"] = "running"
    is_stopping: bool = False
    problem: str = ""

    def state_at(self, now: datetime) -> str:
        """As `state`, or "interrupted" when its process is gone."""
        return "interrupted" if self.state == "running" and now - self.saved_at > SILENT else self.state

    @property
    def share(self) -> float:
        return min(1.0, (self.done + self.refused) / self.matched) if self.matched else 0.0


_decoder = msgspec.json.Decoder(Bulk)


class Bulks:
    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._running: dict[str, asyncio.Task[Bulk]] = {}

    async def start(self, bulk: Bulk, work: Work) -> asyncio.Task[Bulk]:
        """Record a bulk action and carry it out in the background."""
        bus = (await self._stores.acting()).acting(bulk.actor)
        await bus.session.run(_begin(bus.scope, bulk))
        task = asyncio.create_task(self._carry_out(bulk, work), name=f"commandbus-bulk-{bulk.bulk_id}")
        self._running[bulk.bulk_id] = task
        task.add_done_callback(lambda _: self._running.pop(bulk.bulk_id, None))
        return task

    async def get(self, bulk_id: str) -> Bulk:
        bus = await self._stores.reading()
        found = await bus.session.run(_get(bus.scope, bulk_id), read=True)
        if found is None:
            raise NotFoundError(
                f"There is no bulk action {bulk_id!r}; bulk actions are kept for a week."
            )
        return found[1]

    async def list(self) -> list[Bulk]:
        """The newest first."""
        bus = await self._stores.reading()
        return await bus.session.run(_list(bus.scope), read=True)

    async def stop(self, bulk_id: str) -> Bulk:
        """Ask a bulk action to stop after the command that it is at. Raises InvalidOperationError when
        it has ended."""
        bulk = await self.get(bulk_id)
        if bulk.state_at(datetime.now(UTC)) != "running":
            raise InvalidOperationError(f"Bulk action {bulk_id} has ended already.")
        return await self._save(bulk_id, is_stopping=True)

    async def _carry_out(self, bulk: Bulk, work: Work) -> Bulk:
        counts = {"done": 0, "matched": bulk.matched}
        stopping = asyncio.Event()

        def progress(done: int, matched: int) -> bool:
            counts.update(done=done, matched=matched)
            return not stopping.is_set()

        saving = asyncio.create_task(self._follow(bulk.bulk_id, counts, stopping))
        try:
            report = await work(progress)
            ended = {
                "matched": report.matched,
                "done": report.done,
                "refused": report.refused,
                "failed": getattr(report, "failed", 0),
                "failed_ids": [str(one) for one in getattr(report, "failed_ids", ())[:LISTED]],
                "state": "stopped" if report.stopped else "done",
            }
        except CommandBusError as error:
            ended = {**counts, "state": "failed", "problem": str(error)}
        except Exception:  # a mistake of ours must not leave the bulk action running for ever
            logger.exception("bulk action %s failed", bulk.bulk_id)
            ended = {
                **counts,
                "state": "failed",
                "problem": "The bulk action failed; the log says why.",
            }
        finally:
            saving.cancel()
        return await self._save(bulk.bulk_id, ended_at=datetime.now(UTC), **ended)

    async def _follow(self, bulk_id: str, counts: dict[str, int], stopping: asyncio.Event) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            try:
                bulk = await self._save(bulk_id, **counts)
            except CommandBusError as error:  # the next look may succeed
                logger.warning("the progress of bulk action %s cannot be saved: %s", bulk_id, error)
                continue
            if bulk.is_stopping:
                stopping.set()

    async def _save(self, bulk_id: str, **changes: Any) -> Bulk:
        bus = await self._stores.acting(patient=True)
        while True:
            saved = await bus.session.run(_change(bus.scope, bulk_id, changes))
            if saved is not None:
                return saved


def new_bulk(
    title: str, conditions: dict[str, str], again: str, actor: str, reason: str, matched: int
) -> Bulk:
    now = datetime.now(UTC)
    return Bulk(uuid4().hex[:12], title, conditions, again, actor, reason, now, now, matched=matched)


def _document(bulk: Bulk, version: int) -> Document:
    until = int((bulk.began_at + KEPT).timestamp() * 1_000_000)
    body = msgspec.json.encode(bulk).decode()
    return Document(KIND, bulk.bulk_id, version, bulk.state, until, body)


def _begin(scope: Scope, bulk: Bulk) -> Op[None]:
    for old in (yield from scope.store.due_documents(KIND)):
        yield from scope.store.delete_document(KIND, old.key)
    yield from scope.store.put_document(_document(bulk, 0))
    which = ", ".join(f"{name} {value}" for name, value in bulk.conditions.items()) or "everything"
    subject = f"{bulk.matched:,} commands ({which}), bulk action {bulk.bulk_id}"
    yield from record_action(scope, f"bulk_{bulk.title.lower()}", subject, bulk.reason)


def _get(scope: Scope, bulk_id: str) -> Op[tuple[int, Bulk] | None]:
    document = yield from scope.store.get_document(KIND, bulk_id)
    found = readable([document] if document else [], lambda d: (d.version, _decoder.decode(d.body)))
    return found[0] if found else None


def _list(scope: Scope) -> Op[list[Bulk]]:
    documents = yield from scope.store.list_documents(KIND, limit=500)
    found = readable(documents, lambda document: _decoder.decode(document.body))
    return sorted(found, key=lambda bulk: bulk.began_at, reverse=True)[:LISTED]


def _change(scope: Scope, bulk_id: str, changes: dict[str, Any]) -> Op[Bulk | None]:
    """None when another writer was first."""
    found = yield from _get(scope, bulk_id)
    if found is None:
        raise NotFoundError(f"There is no bulk action {bulk_id!r} any more.")
    version, bulk = found
    changed = msgspec.structs.replace(bulk, saved_at=datetime.now(UTC), **changes)
    was_first = yield from scope.store.put_document(_document(changed, version))
    return changed if was_first else None
